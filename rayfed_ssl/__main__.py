"""``python -m rayfed_ssl`` is ``rayfed-ssl``."""

from rayfed_ssl.cli import main

if __name__ == "__main__":
    main()
