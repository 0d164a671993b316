"""From run records to what people look at: the verdict, the terminal, HTML, JUnit, a summary."""
