"""The migrations make what `tables.py` declares, there and back, on both databases and from an installed wheel."""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from receiver.durable.receiver import Receiver
from receiver.errors import StoreError, StoreVersionError
from receiver.senders import DedupKeyMaker, SequenceIdMaker
from receiver.settings import StoreSettings
from receiver.store import schema
from receiver.store.databases import store_url as url_of
from receiver.store.inbox import Inbox
from receiver.store.schema import Migrated, examined, losses, migrate, open_store_engine
from receiver.store.tables import METADATA, REVISION, VERSION_TABLE
from tests.store.waiting import add, message
from tests.stores import engine_of

ROOT = Path(__file__).resolve().parents[2]
NEXT = f"{int(REVISION) + 1:04}"
ALEMBIC = (sys.executable, "-m", "alembic")


def definition(address):
    """All that the database itself knows of our tables, without names that the declaration doesn't give."""
    with engine_of(address).connect() as connection:
        inspector = inspect(connection)
        known = {
            name: (
                [{**column, "type": str(column["type"])} for column in inspector.get_columns(name)],
                inspector.get_pk_constraint(name),
                inspector.get_unique_constraints(name),
                inspector.get_indexes(name),
            )
            for name in METADATA.tables
        }
        if connection.dialect.name == "sqlite":
            # Not the CREATE statements: SQLite spells a column that was added later in another way.
            own = "SELECT name, type, wr, strict FROM pragma_table_list WHERE name LIKE 'receiver%'"
            own += " AND name <> 'receiver_alembic_version'"
        else:
            own = "SELECT relname, reloptions, relpersistence, reltablespace FROM pg_class WHERE relname LIKE 'receiver%' AND relkind = 'r'"
            own += " AND relname <> 'receiver_alembic_version'"
        return known, sorted(map(tuple, connection.execute(text(own))))


@pytest.fixture
def package_one_version_on(tmp_path, monkeypatch):
    """Pretend that the package has one more migration, with the given statements."""

    @contextmanager
    def pretending(statements):
        shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
        (tmp_path / "migrations" / "versions" / f"{NEXT}_more.py").write_text(
            "from alembic import op\n"
            f"revision, down_revision = '{NEXT}', '{REVISION}'\n"
            f"def upgrade():\n    {statements}\n"
            "def downgrade():\n    pass\n"
        )
        with monkeypatch.context() as pretended:
            pretended.setattr(schema, "MIGRATIONS", tmp_path / "migrations")
            pretended.setattr(schema, "REVISION", NEXT)
            yield

    return pretending


def test_a_store_is_current_whether_made_at_once_or_version_by_version(store_url):
    for revision in ["head", "0001", "head"]:
        migrate(url_of(store_url), revision)
        with engine_of(store_url).connect() as connection:
            assert schema._version(connection) == {"head": REVISION}.get(revision, revision)


def test_the_newest_migration_is_the_declared_version():
    scripts = ScriptDirectory(ROOT / "migrations")
    assert scripts.get_heads() == [REVISION]
    assert [script.revision for script in scripts.walk_revisions()] == sorted(
        (Path(script.path).name.partition("_")[0] for script in scripts.walk_revisions()), reverse=True
    )


def test_there_and_back_and_there_again(store_url):
    url = url_of(store_url)
    assert migrate(url) == Migrated(None, REVISION)
    made = definition(store_url)
    assert migrate(url) == Migrated(REVISION, REVISION)
    assert migrate(url, "base") == Migrated(REVISION, None)
    assert inspect(engine_of(store_url)).get_table_names() == [VERSION_TABLE]
    assert migrate(url, "base") == Migrated(None, None)
    assert migrate(url, REVISION) == Migrated(None, REVISION)
    assert definition(store_url) == made
    open_store_engine(url, StoreSettings())


def keep_a_policy(address):
    Receiver.open(address, connection_id="a", destination="orders", policy="perfect").close()


def keep_a_number(address):
    with SequenceIdMaker.open(address, message_source_id="s") as ids:
        ids.next()


def keep_a_key(address):
    with DedupKeyMaker.open(address, sender="s") as keys:
        keys.key_for("order 17")


@contextmanager
def a_lease(address):
    with (
        Receiver.open(address, connection_id="a", destination="orders") as orders,
        Inbox(address, domain_id=orders.domain_id, target="file:a") as inbox,
        inbox.lease() as lease,
    ):
        yield inbox, lease


def keep_a_waiting_message(address):
    with a_lease(address) as (inbox, lease):
        add(inbox, lease.connection, [message(0)])


def keep_a_parked_message(address):
    with a_lease(address) as (_, lease):
        lease.park(message(0), "refused")


def keep_a_length(address):
    with a_lease(address) as (_, lease):
        lease.save_file(17, b"digest")


KEPT = {
    "policy of 1 domain": keep_a_policy,
    "last sequence number of 1 source": keep_a_number,
    "key of 1 message": keep_a_key,
    "1 message waiting": keep_a_waiting_message,
    "1 parked message": keep_a_parked_message,
    "confirmed length of 1 file": keep_a_length,
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kept", KEPT)
def test_what_an_older_version_would_lose_is_kept(store_url, kept):
    """A user who asks for `base` wants nothing kept."""
    url = url_of(store_url)
    migrate(url)
    KEPT[kept](store_url)
    with pytest.raises(StoreError, match=f"can't hold .*{kept}"):
        migrate(url, "0001")
    assert migrate(url) == Migrated(REVISION, REVISION)
    assert migrate(url, "base") == Migrated(REVISION, None)


def test_what_duplicates_needed_is_lost_on_the_way_back_and_nothing_else(store_url):
    """A version that doesn't know the needs judges alike. Its own duplicates aren't in the needs afterwards."""
    url = url_of(store_url)
    with Receiver.open(store_url, connection_id="a", destination="orders") as orders, orders.batch() as batch:
        batch.receive_many((id_, None, 0) for id_ in "aba")
    assert losses(url, "0004") == ["what the duplicates of 1 domain needed"]
    with pytest.raises(StoreError, match="would lose what the duplicates of 1 domain needed by now"):
        migrate(url, "0004", may_lose=False)
    assert migrate(url, "0004") == Migrated(REVISION, "0004")
    columns = [column["name"] for column in inspect(engine_of(store_url)).get_columns("receiver_domain")]
    assert "needs_by_hour" not in columns
    assert losses(url, "0004") == []
    with Receiver.open(store_url, connection_id="a", destination="orders") as orders:
        assert (orders.status().rDupIds, orders.status().window_need) == (2, None)
        with orders.batch() as batch:
            assert batch.receive("b", received_at_us=0).verdict == "duplicate"
        assert orders.status().window_need == 2
    assert migrate(url) == Migrated(REVISION, REVISION)


def test_every_migration_declares_what_going_back_loses():
    for script in ScriptDirectory(ROOT / "migrations").walk_revisions():
        declared = [
            getattr(script.module, name) for name in ("LOSES", "KEPT_BY_NEWER_ONLY") if hasattr(script.module, name)
        ]
        assert declared, script.path
        assert all(re.fullmatch(r"[^{}]*\{[a-z ]+\}[^{}]*", words) for each in declared for words in each), script.path


def test_of_a_migration_that_declares_nothing_all_is_lost(store_url, package_one_version_on):
    url = url_of(store_url)
    migrate(url)
    with package_one_version_on("pass"):
        migrate(url)
        assert losses(url, REVISION) == losses(url, "base") == []
        keep_a_policy(store_url)
        assert losses(url, REVISION) == [f"what version {NEXT} added to 1 domain"]
        assert len(losses(url, "base")) == 3
        with pytest.raises(StoreError, match=f"would lose what version {NEXT} added to 1 domain by now"):
            migrate(url, REVISION, may_lose=False)


def test_what_comes_after_the_look_is_not_lost_unasked(store_url):
    url = url_of(store_url)
    migrate(url)
    assert losses(url, "base") == []
    keep_a_parked_message(store_url)
    with pytest.raises(StoreError, match=r"would lose 1 parked message, .*1 domain .*by now"):
        migrate(url, "base", may_lose=False)
    assert migrate(url) == Migrated(REVISION, REVISION)


def test_migrated_equals_declared(store_url, request):
    """Alembic's comparison says so, and so does what each database says of tables made without migrations."""
    migrate(url_of(store_url))
    with engine_of(store_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []
    migrated = definition(store_url)
    migrate(url_of(store_url), "base")
    METADATA.create_all(engine_of(store_url))
    assert definition(store_url) == migrated
    own = dict((*row[:1], row[1:]) for row in migrated[1])
    assert own["receiver_receipt"][1] == 1 if "sqlite" in request.node.name else "fillfactor=10" in str(migrated)


def test_a_migration_that_fails_changes_nothing(store_url, package_one_version_on):
    """All of it is in one transaction, in SQLite too."""
    migrate(url_of(store_url))
    before = definition(store_url)
    failing = "op.drop_table('receiver_joined'); op.drop_table('letters')"
    with package_one_version_on(failing), pytest.raises(StoreError, match="letters"):
        migrate(url_of(store_url))
    assert definition(store_url) == before
    assert migrate(url_of(store_url)) == Migrated(REVISION, REVISION)


def test_an_older_store_is_upgraded_when_it_opens(store_url, package_one_version_on):
    """A receiver upgrades it. A command that only reads refuses it, and from then on the older package does."""
    url = url_of(store_url)
    migrate(url)
    inserting = (
        "op.execute('DELETE FROM receiver_joined'); op.execute('INSERT INTO receiver_joined VALUES (1, 2, 3, 4)')"
    )
    with package_one_version_on(inserting):
        with pytest.raises(StoreVersionError, match=f"of version {REVISION}, older than {NEXT}") as caught:
            examined(url)
        assert "receiver migrate" in caught.value.hint
        for _ in range(2):
            with open_store_engine(url, StoreSettings()).connect() as connection:
                assert connection.scalar(text("SELECT count(*) FROM receiver_joined")) == 1
        assert migrate(url, REVISION) == Migrated(NEXT, REVISION)
        assert migrate(url) == Migrated(REVISION, NEXT)
    with pytest.raises(StoreVersionError, match=f"version {NEXT}, which this version of the package doesn't know"):
        open_store_engine(url, StoreSettings())


def alembic(*arguments, **environment):
    return subprocess.run(
        [*ALEMBIC, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.slow
def test_alembic_in_the_checkout(store_url):
    """The store may be named in either way. Alembic ignores the application's tables."""
    with engine_of(store_url).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    by_option = ("-x", f"url={store_url}")
    for arguments, environment in (
        ([*by_option, "upgrade", "head"], {}),
        ([*by_option, "check"], {}),
        (["downgrade", "base"], {"RECEIVER_URL": store_url}),
        (["upgrade", "head"], {"RECEIVER_URL": store_url}),
    ):
        ran = alembic(*arguments, **environment)
        assert ran.returncode == 0, ran
    open_store_engine(url_of(store_url), StoreSettings())
    assert "orders" in inspect(engine_of(store_url)).get_table_names()


def test_alembic_prints_the_statements():
    ran = alembic("-x", "url=postgresql://u@h/d", "upgrade", "head", "--sql")
    assert ran.returncode == 0, ran
    assert "CREATE TABLE receiver_receipt" in ran.stdout


@pytest.mark.parametrize(
    ("way", "refused"),
    [
        (("downgrade", "0014:base"), "a script can't go back: say receiver migrate URL --revision REV"),
        (("upgrade", "0003:head"), "a script can't rename targets: say receiver migrate URL"),
    ],
)
def test_alembic_prints_no_script_that_would_need_to_see_the_rows(way, refused):
    ran = alembic("-x", "url=postgresql://u@h/d", *way, "--sql")
    assert ran.returncode != 0
    assert refused in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "which store?"),
        ("mysql://h/d", "isn't a store's address"),
        ("sqlite:////no/such/receiver.db", "no folder"),
    ],
)
def test_alembic_refuses_without_a_traceback(address, words):
    ran = alembic("upgrade", "head", RECEIVER_URL=address)
    assert ran.returncode != 0
    assert words in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_an_installed_wheel_migrates(tmp_path):
    """It runs in a folder of its own, from which nothing leads to the checkout."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("receiver", "migrations", "spark_jobs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "settings.yaml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, source], check=True)
    program = """if True:
        import sys
        sys.path.insert(0, sys.argv.pop(1))
        import receiver
        from receiver.cli import run
        print(receiver.__file__)
        sys.exit(run())
    """
    for revision, said in {
        "head": f"from no tables to version {REVISION}",
        "base": f"from version {REVISION} to no tables",
    }.items():
        arguments = [installed, "migrate", f"sqlite:///{tmp_path}/receiver.db", "--revision", revision]
        ran = subprocess.run(
            [sys.executable, "-P", "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert str(installed) in ran.stdout
        assert said in ran.stdout
    assert not list((installed / "receiver" / "migrations").rglob("*.ini"))


def test_an_upgrade_gives_way_to_a_lease_that_waits_for_it(fresh_postgres_url):
    """A turn locks its target, then reads its domain. The upgrade takes the two tables in the other order."""
    url = url_of(fresh_postgres_url)
    migrate(url, "0003")
    insert = "INSERT INTO receiver_target (domain_id, target) VALUES (1, 'file:a')"
    with engine_of(url).begin() as connection:
        connection.execute(text(insert))
    with engine_of(url).connect() as lease, ThreadPoolExecutor() as pool:
        lease.execute(text("SELECT * FROM receiver_target FOR UPDATE"))
        upgrade = pool.submit(migrate, url)
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not lease.execute(waiting).scalar_one():
            assert not upgrade.done()
        lease.execute(text("SELECT * FROM receiver_domain"))
        lease.commit()
        assert upgrade.result() == Migrated("0003", REVISION)
