"""The kinds of sources: which images there are, with labels, clients and groups; none is decoded here."""
