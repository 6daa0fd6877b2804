"""What everything stands on: schemas, tables, seeded generators, flat weights, linear algebra."""
