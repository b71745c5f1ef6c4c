"""What the tests of a store that loses writes share."""

import pytest

from towline.errors import Rewound
from towline.events.log import EventLog


async def log_of(store, run):
    return [event.payload.get("on", event.type) for event in await EventLog(store, run).all()]


async def loss_of(following):
    """The Rewound that ends it."""
    with pytest.raises(Rewound) as rewound:
        [event async for event in following]
    return rewound.value
