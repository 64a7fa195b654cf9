"""What a worker does within a step or two. The steps are made one by one, as the test allows them."""

from structlog.testing import capture_logs

from tests.fakes.gateway_stack import until
from tests.fakes.model import Pace, PacedModel
from tests.fakes.worker_stack import Gateway, config, idle, running_worker


async def step_until_side_by_side(pace: Pace, num_sequences: int) -> None:
    """Make steps until the one that is about to run has `num_sequences`."""
    await until(lambda: bool(pace.begun))
    while pace.begun[-1] < num_sequences:
        await one_step(pace)


async def one_step(pace: Pace) -> None:
    """Let the step that waits run, until the next one waits."""
    begun = len(pace.begun)
    pace.allow_one()
    await until(lambda: len(pace.begun) > begun)


async def all_told(pace: Pace, gateway: Gateway) -> None:
    """Wait for the news of every step but the one that waits: each samples one token of every sequence in it."""
    await gateway.until(lambda: gateway.num_tokens == sum(pace.begun[:-1]))


async def test_news_of_one_step_comes_in_one_message() -> None:
    pace = Pace()
    async with running_worker(config(num_slots=4096), PacedModel(pace=pace)) as (_, addresses):
        with pace:
            gateway = Gateway(addresses.grpc)
            for sequence_id in range(8):
                await gateway.submit(sequence_id, [sequence_id] * 5, max_new_tokens=400)
            await step_until_side_by_side(pace, 8)
            await all_told(pace, gateway)
            gateway.sizes.clear()
            steps_before = len(pace.begun)
            for _ in range(10):
                await one_step(pace)
                await all_told(pace, gateway)
            sizes, num_steps = list(gateway.sizes), len(pace.begun) - steps_before
            await gateway.close()

    assert num_steps >= 10
    assert sizes == [8] * num_steps


async def test_what_a_vanished_gateway_left_running_is_gone_within_two_steps() -> None:
    pace = Pace()
    with capture_logs() as log:
        async with running_worker(config(num_slots=4096), PacedModel(pace=pace)) as (app, addresses):
            with pace:
                vanishing, staying = Gateway(addresses.grpc), Gateway(addresses.grpc)
                await staying.submit(1, [4, 5, 6], max_new_tokens=400)
                for sequence_id in range(7):
                    await vanishing.submit(sequence_id, [sequence_id] * 3, max_new_tokens=400)
                await step_until_side_by_side(pace, 8)
                await vanishing.close()
                await until(lambda: any(entry["event"] == "gateway gone" for entry in log))

                begun = len(pace.begun)
                for _ in range(3):
                    await one_step(pace)
                further, running = pace.begun[begun + 1 :], app.load().running
            await staying.cancel(1)
            await staying.end(1)
            await idle(app)
            await staying.close()

    assert further == [1, 1], "only the sequence of the gateway that stays"
    assert running == 1
