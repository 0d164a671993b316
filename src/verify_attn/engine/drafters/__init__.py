"""Drafters: who proposes the tree that a verify step looks at."""
