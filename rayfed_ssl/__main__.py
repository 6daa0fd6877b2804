"""``rayfed-ssl`` and ``python -m rayfed_ssl``: says in one line that it was interrupted, even while it is imported."""

import sys


def main() -> None:
    """The command line; Ctrl-C while it is being imported ends as it does later."""
    try:
        from rayfed_ssl.cli import main as command

        command()
    except KeyboardInterrupt:
        from rayfed_ssl.base.user_error import INTERRUPTED

        print(INTERRUPTED.format("SIGINT"), file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
