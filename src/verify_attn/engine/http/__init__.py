"""OpenAI's routes over an engine: requests in, jobs out, deltas back as events."""
