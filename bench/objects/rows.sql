-- A table and an index in memory, then a group, and a join that needs any row.
pragma temp_store = memory;
create table row (key text, number integer, word text);
with recursive count(i) as (select 1 union all select i + 1 from count where i < 1200000)
insert into row select 'key-' || ((i * 1103515245 + 12345) % 2147483648), i, 'word-' || i from count;
create index row_key on row (key);
select substr(key, 1, 6) as start, count(*), max(word) from row group by start order by start;
select sum(other.number) from row join row as other on other.rowid = (row.number * 7919) % 1200000 + 1 where row.number % 4 = 0;
