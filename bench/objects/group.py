"""DuckDB: sums by group and a window over four million rows in memory.

Left to itself, DuckDB takes four fifths of its memory cgroup's limit for its own, and spills to files beyond that. Then
the kernel's swap would be compared with Overspill at different work.
"""

import duckdb

database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "8GB"})
database.execute("CREATE TABLE t AS SELECT i, hash(i) % 200000 AS g, hash(i * 7) % 1000000 AS x FROM range(4000000) r(i)")
print(database.execute("SELECT count(*), sum(s) FROM (SELECT g, sum(x) AS s FROM t GROUP BY g)").fetchall())
print(database.execute("SELECT sum(r) FROM (SELECT row_number() OVER (PARTITION BY g % 100 ORDER BY x, i) AS r FROM t)").fetchall())
