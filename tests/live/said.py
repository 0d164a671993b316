"""What a test says beside passing or failing: see the fixture ``say``."""

from collections.abc import Callable

Say = Callable[[str], None]
