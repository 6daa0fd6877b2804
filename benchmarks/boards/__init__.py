"""What ``leaderboard.py`` is made of: cells and rows of its boards, and tables, figures and verdicts made of rows."""
