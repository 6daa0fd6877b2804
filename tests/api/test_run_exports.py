"""What a script takes out of a run is what the commands write: tables of features, exports, audits, the page."""

from __future__ import annotations
