"""What all other packages use: schemas, tables, seeded generators, flat weights, linear algebra."""
