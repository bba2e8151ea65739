# shellcheck shell=sh
# Sourced by the scripts beside it, which then call `set_up EXTRAS`: makes `.venv` in the checkout with the package and
# those extras, editable, or finds it made. Without extras, which is enough to show help, any that was made before will do.
# Says nothing on standard output. `RECEIVER_PYTHON` names a Python to use instead of the first that fits; it gets an
# environment of its own, such as `.venv-python3.13`.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/.venv${RECEIVER_PYTHON:+-${RECEIVER_PYTHON##*/}}
# Most modules are never imported, so each is compiled when it first is. With this set, it would be in each run again.
unset PYTHONDONTWRITEBYTECODE

die() {
    say "$*"
    exit 2
}

set_up() {
    # Holds the checkout's path too: an editable install points back at it, so a moved checkout installs again.
    wanted=$(cksum <"$root/pyproject.toml") || die "$root has no readable pyproject.toml"
    wanted="$wanted $root"
    [ -n "$1" ] || for stamp in "$venv"/installed-*; do
        is_current && return
    done
    stamp=$venv/installed-$1
    is_current && return

    (: >>"$root/.venv.lock") 2>/dev/null || die "can't write to $root, where .venv belongs: copy the checkout to a" \
        "folder that you can write to, or mount it writable"
    python=$(find_python) || exit
    # The lock belongs to the open file, so it is gone with this process and its children, however they end.
    exec 9>>"$root/.venv.lock"
    "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null || {
        say "waiting for another run that is setting up $venv"
        "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || die "can't lock $root/.venv.lock"
    }
    # Another run may have done the work while this one waited.
    is_current || install "$1"
    exec 9>&-
}

is_current() {
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null
}

install() {
    say "installing what this command needs into $venv, once${1:+: about a minute, and up to 1 GB of disk}"
    # An earlier run may have been cut short, or its Python be gone.
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || {
        say "1 of 3: making a virtual environment with $python"
        quietly "$python" -m venv --clear "$venv"
    }
    say "2 of 3: downloading this package${1:+ with the extras $1}, and the libraries that it needs"
    quietly "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile --editable "$root${1:+[$1]}"
    # Last, so that whatever interrupts the steps above makes the next run do them again.
    printf '%s\n' "$wanted" >"$stamp"
    say "done"
}

say() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# Runs a command, of which standard error gets no more than how far pip is; where it fails, all that it said.
quietly() {
    output=$({
        code=0
        "$@" 2>&1 || code=$?
        printf 'exit status %s\n' "$code"
    } | watch_pip) || {
        printf '%s\n' "$output" >&2
        die "failed: $*"
    }
}

# Copies its input, which ends with the status that it returns. On a terminal one line counts the packages.
watch_pip() {
    packages=0
    while IFS= read -r line; do
        case $line in
        "exit status "*)
            [ "$packages" -eq 0 ] || clear_line
            return "${line#exit status }"
            ;;
        "Collecting "*)
            packages=$((packages + 1))
            name=${line#Collecting }
            clear_line
            [ ! -t 2 ] || printf '%s: 2 of 3: package %d: %s' "${0##*/}" "$packages" "${name%% *}" >&2
            ;;
        "Installing collected packages: "*)
            clear_line
            say "3 of 3: installing what was downloaded"
            ;;
        esac
        printf '%s\n' "$line"
    done
}

clear_line() {
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

find_python() {
    lacking=
    for candidate in ${RECEIVER_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        lacking=${lacking:-$(command -v "$candidate")}
    done
    [ -z "$lacking" ] || die "$lacking can't make virtual environments: install its module venv" \
        "(Debian, Ubuntu: apt install python3-venv)"
    [ -z "${RECEIVER_PYTHON:-}" ] || die "RECEIVER_PYTHON names no Python 3.11 or newer: $RECEIVER_PYTHON"
    die "needs Python 3.11 or newer, and none is on the PATH: install it (Debian 12, Ubuntu 24.04 or later: apt" \
        "install python3 python3-venv; macOS: brew install python; elsewhere: https://www.python.org/downloads/)"
}
