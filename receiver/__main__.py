"""The entry of the command: `receiver`, or `python -m receiver`."""


def main() -> None: ...


if __name__ == "__main__":
    main()
