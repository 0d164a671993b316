"""A small engine: a decoder with weight-absorbed MLA over a paged latent pool."""
