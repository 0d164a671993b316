"""verify-attn: is tree-verify attention right, how fast is it, and does a server hold its speed?"""

__version__ = "0.1.0"
