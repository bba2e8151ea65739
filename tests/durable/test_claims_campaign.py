"""Concurrent consumers in many processes are killed at random moments, and their server dies too. Each effect
happens once."""

import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from unittest.mock import patch

import pytest
from sqlalchemy import NullPool, create_engine, select

from tests.campaigns import survived
from tests.durable.claimed_domain import HandFolder
from tests.durable.crew import BATCH, METADATA, Crew, Running, crew_receiver, outcomes, running
from tests.durable.opened import NEW, send
from tests.durable.server import mortal_server
from tests.durable.test_concurrent import claims, waiting
from tests.patience import until
from tests.postgres import wait_for_the_dead

CREWS = {"quick": (2, 2), "small": (4, 3), "long": (8, 4)}
"""How many processes, and how many threads in each."""
LONGEST_LIFE_SECS = 1.2


def all_folded_in(url):
    """Fold everything in. Returns whether exactly the remembered ids are claimed then."""
    with patch("receiver.durable.receiver.FoldingThread", HandFolder), crew_receiver(url) as orders:
        while orders._folding.fold(2_000, undo=False) or orders._folding.has_left:
            pass
        assert waiting(url) == 0
        return set(claims(url)) == set(orders.session.cache.policy.remembered())


def outcomes_of(url):
    """How often each id took effect, and which ids were dropped."""
    engine = create_engine(url, poolclass=NullPool)
    took_effect, dropped = Counter(), set()
    with engine.connect() as connection:
        for id_, is_dropped in connection.execute(select(outcomes)):
            if is_dropped:
                dropped.add(id_)
            else:
                took_effect[id_] += 1
    return took_effect, dropped


@pytest.mark.costly
@pytest.mark.scaled
def test_kills_of_consumers_and_servers(tmp_path, request, seed, campaign):
    chosen = random.Random(seed)
    processes, threads = CREWS[request.config.getoption("--campaign")]
    with mortal_server() as server:
        url = server.url
        METADATA.create_all(create_engine(url, poolclass=NullPool))
        begin = dict.fromkeys(range(threads), 0)
        crews = [
            Crew(url=url, number=number, life=0, seed=seed, begin=begin, stop=tmp_path / "stop")
            for number in range(processes)
        ]
        what = ["consumers"] * campaign.kills + ["server"] * campaign.restarts
        chosen.shuffle(what)
        with running(crews) as crew:
            for whom in what:
                time.sleep(chosen.uniform(0, LONGEST_LIFE_SECS))
                if whom == "server":
                    server.kill()
                    time.sleep(chosen.uniform(0, LONGEST_LIFE_SECS))
                    server.start()
                    continue
                which = chosen.randrange(processes)
                crew[which].kill()
                killed = crew[which]
                crew[which] = Running(replace(killed.crew, life=killed.crew.life + 1, begin=killed.confirmed))
            lives = {which: dict(one.confirmed) for which, one in enumerate(crew)}
            # More than any batch that a killed process has committed without a report.
            until(
                lambda: all(one.confirmed[t] >= lives[w][t] + BATCH for w, one in enumerate(crew) for t in begin), 120
            )
            (tmp_path / "stop").touch()
            for one in crew:
                one.end()
                assert one.said == ["ended", "[]"]
            confirmed = {one.crew.number: one.confirmed for one in crew}
        wait_for_the_dead(url)
        assert all_folded_in(url)
        took_effect, dropped = outcomes_of(url)
    shared = sum(id_.startswith("shared") for id_ in took_effect)
    print(f"{len(took_effect)} messages, {shared} of them shared; {len(dropped)} came again")
    assert set(took_effect.values()) == {1}
    assert dropped <= took_effect.keys()
    sent = {
        f"{which}:{thread}:{n}" for which, ends in confirmed.items() for thread, end in ends.items() for n in range(end)
    }
    assert sent == {id_ for id_ in took_effect if not id_.startswith("shared")}
    survived({"kills": campaign.kills, "kills of the server": campaign.restarts}, len(took_effect))


@pytest.mark.costly
def test_another_takes_over_from_a_killed_folder(fresh_postgres_url, tmp_path):
    url = fresh_postgres_url
    METADATA.create_all(create_engine(url, poolclass=NullPool))
    crew = Crew(url=url, number=0, life=0, seed=0, begin={0: 0}, stop=tmp_path / "stop")
    with running([crew]) as (other,):
        until(lambda: other.confirmed[0] > 0)
        with closing(crew_receiver(url)) as orders:
            until(lambda: claims(url) and waiting(url) == 0)
            assert not orders.is_folding
            other.kill()
            until(lambda: orders.is_folding)
            assert send(orders, "mine") == [NEW]
            until(lambda: waiting(url) == 0)
    assert all_folded_in(url)
