"""When a run is looked at again, and that nothing can make its reconciler spin."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from tests.unit.controller.world import FACTS, FIRST, World, working
from towline.controller.actions import Action, CreateSandbox, MarkSandboxReady
from towline.controller.cache import Cache
from towline.controller.carry_out import Done, Hands
from towline.controller.observe import Observer
from towline.controller.reconcile import Looked, Reconciler
from towline.controller.seen import Observed

KEY = ("team", "hello")


class Played:
    """Observer and hands over a world; what is named in `ignored` is accepted and changes nothing."""

    def __init__(self, world: World, ignored: tuple[type[Action], ...] = ()) -> None:
        self.world, self.ignored = world, ignored
        self.reconciler = Reconciler(
            observer=cast(Observer, self), hands=cast(Hands, self), cache=Cache(), tell=lambda *_: None
        )

    async def look(self, key: Any, *, live: bool = False) -> Observed:
        return replace(self.world.seen(), live=live)

    async def reread(self, seen: Observed) -> Observed:
        return await self.look(KEY, live=seen.live)

    async def carry_out(self, actions: list[Action], seen: Observed) -> Done:
        for action in actions:
            if not isinstance(action, self.ignored):
                self.world.act(action)
        return Done(await self.reread(seen))

    async def tell_log(self, seen: Observed, news: Any) -> None:
        self.world.told()

    async def write_status(self, seen: Observed, status: dict[str, Any]) -> Observed:
        self.world.write(status)
        return await self.reread(seen)


async def test_what_follows_from_what_was_done_is_due_at_once() -> None:
    world = World(facts=replace(FACTS, eager=True))

    assert await Played(world).reconciler.reconcile(KEY) == Looked(timedelta())
    assert world.plan().actions == [CreateSandbox(1)]


async def test_when_nothing_is_due_it_waits_for_news() -> None:
    assert await Played(working()).reconciler.reconcile(KEY) == Looked()


async def test_what_is_done_and_due_all_the_same_is_tried_again_later_each_time() -> None:
    world = working()
    world.wants()
    world.settle()
    world.starts(FIRST)

    assert await Played(world, ignored=(MarkSandboxReady,)).reconciler.reconcile(KEY) == Looked(retry=True)
