from rayfed_ssl.testing import contract

TestHalfway = contract(
    "halfway", {"clients.encoders": "pixels_mean", "data.partition": {"name": "striped", "skipped": 9}}
)
