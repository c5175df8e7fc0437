"""Programs with a memory manager or a runtime of their own, as cases of suites.py.

Each program makes its own input from a fixed seed, needs some 60 to 300 MiB, touches its memory in an order that pages
badly, and prints sums of all that it made, so that one wrong page shows. There are few look-ups at random: at 60 % each
takes several page faults, and more of them would measure the disk.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from common import REPOSITORY, Failure


def as_it_is(stdout: str, _stderr: str) -> str:
    """The verdict of a program whose output is always the same."""
    return stdout


@dataclass(frozen=True)
class Case:
    """One test of a suite, or one program."""

    suite: str
    name: str
    command: tuple[str, ...]
    """$INPUT is the directory that `prepare` filled."""
    budget: int | None = None
    """In bytes; None: a share of its peak without Overspill."""
    needs: tuple[str, ...] = ()
    """Executables that must be installed besides the first word of the command."""
    modules: tuple[str, ...] = ()
    """Python modules that must be installed."""
    options: tuple[str, ...] = ()
    """Further options of `overspill run`."""
    unless: str | None = None
    """Why the case cannot run, if that is known beforehand."""
    prepare: Callable[[Path], object] = lambda _directory: None
    verdict: Callable[[str, str], str] = as_it_is
    """Takes (standard output, standard error) and returns what must be the same with and without Overspill."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Goes into the environment."""
    must_succeed: bool = False
    quick: bool = False
    """Whether it is part of the quick profile."""

    def missing(self) -> str | None:
        """Why this cannot run here, if it cannot."""
        absent = [name for name in (*self.command[:1], *self.needs) if not shutil.which(name)]
        absent += [name for name in self.modules if importlib.util.find_spec(name) is None]
        return self.unless or (f"not installed: {', '.join(absent)}" if absent else None)


def make(*commands: list[str]) -> Callable[[Path], None]:
    """Prepare by running commands in the input's directory."""

    def prepare(directory: Path) -> None:
        for command in commands:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
            if done.returncode:
                raise Failure(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")

    return prepare


def source(name: str, text: str, *commands: list[str]) -> Callable[[Path], None]:
    """Prepare by writing a source, and by running commands if it is to be compiled."""

    def prepare(directory: Path) -> None:
        (directory / name).write_text(text)
        make(*commands)(directory)

    return prepare


def script(name: str, words: list[str], text: str = "", /, **more: object) -> Case:
    """A program in an interpreter's language; SCRIPT in `words` stands for its file."""
    line = " ".join('"$INPUT"/script' if word == "SCRIPT" else word for word in words)
    case = Case(
        "runtimes",
        name,
        ("sh", "-c", f"exec {line}"),
        needs=(words[0],),
        prepare=source("script", text),
        must_succeed=True,
    )
    return replace(case, **more)  # type: ignore[arg-type]


def tree(case: Case) -> Case:
    """The same case as two processes at a time under a shell, each in a directory of its own."""
    both = 'job() (mkdir $1; cd $1; shift; "$@"; echo $?); job one "$@" >1 & job two "$@" >2; wait; cat 1 2; rm -r 1 2 one two'
    return replace(case, name=f"{case.name}-tree", command=("sh", "-c", both, "sh", *case.command), quick=False)


NODE = """
const {createHash} = require('crypto');
let seed = 12345;
const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff);
const map = new Map(), list = [];
for (let i = 0; i < 250000; i++) {
  const key = 'key-' + next() + '-' + i;
  map.set(key, {id: i, name: key.toUpperCase(), numbers: [next(), next(), next()]});
  list.push(key);
}
const buffers = [];
for (let i = 0; i < 60; i++) buffers.push(Buffer.alloc(1 << 19, i));
const sum = createHash('sha256');
for (let i = 0; i < 30000; i++) {
  const entry = map.get(list[next() % list.length]);
  sum.update(entry.name + entry.numbers.join());
  if (i % 5000 == 0) sum.update(buffers[next() % buffers.length]);
}
list.sort();
sum.update(list.join());
for (const buffer of buffers) sum.update(buffer);
console.log(map.size, sum.digest('hex'));
"""

NODE_WORKERS = """
const {Worker, isMainThread, parentPort, workerData} = require('worker_threads');
if (isMainThread) {
  const results = [];
  let left = 4;
  for (let n = 0; n < 4; n++) {
    const worker = new Worker(__filename, {workerData: n});
    worker.on('message', text => { results[n] = text; });
    worker.on('error', error => { throw error; });
    worker.on('exit', () => { if (--left == 0) console.log(results.join('\\n')); });
  }
} else {
  let seed = workerData + 1;
  const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff);
  let sum = 0;
  for (let round = 0; round < 6; round++) {
    const rows = [];
    for (let i = 0; i < 60000; i++) rows.push({a: next(), b: 'x' + next(), c: [next()]});
    rows.sort((x, y) => x.a - y.a);
    for (const row of rows) sum = (Math.imul(sum, 31) + row.a + row.b.length + row.c[0]) | 0;
  }
  parentPort.postMessage(workerData + ' ' + sum);
}
"""

JAVA = """
import java.util.*;
import java.util.concurrent.*;

public class Main {
    record Row(int id, String name, long[] numbers) {}

    static long job(int which) {
        Random random = new Random(which);
        Map<String, Row> map = new HashMap<>();
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < 120_000; i++) {
            String key = "key-" + random.nextInt() + "-" + i;
            map.put(key, new Row(i, key + key, new long[] {random.nextLong(), i}));
            keys.add(key);
        }
        long sum = 0;
        for (int i = 0; i < 30_000; i++) {
            Row row = map.get(keys.get(random.nextInt(keys.size())));
            sum = sum * 31 + row.name().hashCode() + row.numbers()[0];
            if (i % 10 == 0) map.put(keys.get(i / 10), new Row(i, row.name(), row.numbers().clone()));
        }
        for (String key : keys) sum = sum * 31 + map.get(key).id();
        Collections.sort(keys);
        sum = sum * 31 + keys.hashCode();
        return sum;
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(2);
        List<Future<Long>> futures = new ArrayList<>();
        for (int i = 0; i < 4; i++) { int which = i; futures.add(pool.submit(() -> job(which))); }
        for (Future<Long> future : futures) System.out.println(future.get());
        pool.shutdown();
    }
}
"""

RUBY = """
require 'digest'
random = Random.new(42)
map = {}
300_000.times { |i| map["key-#{random.rand(1 << 30)}-#{i}"] = [i, random.rand, "v#{i}" * 3] }
keys = map.keys
digest = Digest::SHA256.new
20_000.times { digest << map[keys[random.rand(keys.size)]].inspect }
digest << keys.sort.join
GC.compact if GC.respond_to?(:compact)
child = IO.popen('-')
if child.nil?
  puts Digest::SHA256.hexdigest(keys.map { |k| map[k][2] }.join)
else
  puts child.read
  child.close
end
puts map.size, digest.hexdigest
"""

PHP = """<?php
ini_set('memory_limit', -1);
mt_srand(42);
$map = [];
for ($i = 0; $i < 400000; $i++) $map["key-" . mt_rand() . "-$i"] = [$i, mt_rand(), str_repeat("v$i", 3)];
$keys = array_keys($map);
$hash = hash_init('sha256');
for ($i = 0; $i < 30000; $i++) hash_update($hash, json_encode($map[$keys[mt_rand(0, count($keys) - 1)]]));
foreach ($keys as $key) hash_update($hash, $key . $map[$key][2]);
sort($keys);
hash_update($hash, implode(',', $keys));
echo count($map), ' ', hash_final($hash), "\\n";
"""

PERL = """
use strict; use warnings; use Digest::SHA;
my $seed = 42;
sub number { $seed = ($seed * 1103515245 + 12345) & 0x7fffffff }
my %map; my @keys;
for my $i (1 .. 30000) {
  my $key = 'key-' . number() . "-$i";
  $map{$key} = [$i, number(), "v$i" x 100];
  push @keys, $key;
}
my $sha = Digest::SHA->new(256);
$sha->add(join ',', @{$map{$keys[number() % @keys]}}) for 1 .. 3000;
my $child = open(my $pipe, '-|') // die;
if (!$child) { print Digest::SHA::sha256_hex(map { $map{$_}[2] } @keys), "\\n"; exit 0 }
print <$pipe>; close $pipe or die;
$sha->add($_, $map{$_}[2]) for @keys;
$sha->add(join ',', sort @keys);
print scalar(@keys), ' ', $sha->hexdigest, "\\n";
"""

R = """
set.seed(42)
n <- 1500000
frame <- data.frame(group = sample(1000, n, TRUE), x = runif(n), y = rnorm(n))
sums <- aggregate(cbind(x, y) ~ group, frame, sum)
print(colSums(sums), digits = 12)
frame <- frame[order(frame$y), ]
print(head(frame, 5), digits = 12)
words <- paste0("w", sample(200000))
table <- new.env(hash = TRUE)
for (i in seq_along(words)) assign(words[i], i, envir = table)
print(sum(unlist(mget(sort(words)[1:100000], envir = table))))
m <- matrix(rnorm(1e6), 1000)
print(sum(abs(crossprod(m))), digits = 10)
"""

LUA = """
local seed = 42
local function number() seed = (seed * 1103515245 + 12345) % 2147483648; return seed end
local map, keys = {}, {}
for i = 1, 100000 do
  local key = "key-" .. number() .. "-" .. i
  map[key] = {i, number(), "v" .. i}
  keys[#keys + 1] = key
end
local sum = 0
for _ = 1, 10000 do
  local row = map[keys[number() % #keys + 1]]
  sum = (sum * 31 + row[1] + row[2] + #row[3]) % 4294967291
end
local sorted = table.move(keys, 1, #keys, 1, {})
table.sort(sorted)
for _, key in ipairs(sorted) do sum = (sum * 31 + #key) % 4294967291 end
for round = 1, 3 do for i = 1, #keys, 3 do map[keys[i]] = {round, i, keys[i]:upper()} end; collectgarbage() end
for _, key in ipairs(keys) do sum = (sum * 31 + #map[key][3] + map[key][1]) % 4294967291 end
print(#keys, string.format("%d", sum))
"""

GUILE = """
(define seed 42)
(define (number) (set! seed (modulo (+ (* seed 1103515245) 12345) 2147483648)) seed)
(define table (make-hash-table 150000))
(define keys (make-vector 150000))
(do ((i 0 (+ i 1))) ((= i 150000))
  (let ((key (string-append "key-" (number->string (number)) "-" (number->string i))))
    (hash-set! table key (list i (number) (make-string 20 #\\x)))
    (vector-set! keys i key)))
(define sum 0)
(define (add! n) (set! sum (modulo (+ (* sum 31) n) 4294967291)))
(do ((i 0 (+ i 1))) ((= i 10000))
  (let ((row (hash-ref table (vector-ref keys (modulo (number) 150000)))))
    (add! (+ (car row) (cadr row) (string-length (caddr row))))))
(gc)
(array-for-each (lambda (key) (add! (cadr (hash-ref table key)))) keys)
(display sum) (newline)
"""

PYTHON_PROCESSES = """
import hashlib, multiprocessing, random, sys

def job(number):
    rng = random.Random(number)
    names = {f"{number}-{i}": (i, str(rng.random())) for i in range(30_000)}
    digest = hashlib.sha256()
    for _ in range(10_000):
        digest.update(repr(names[f"{number}-{rng.randrange(30_000)}"]).encode())
    if shared:
        for i in range(0, len(shared), 3):
            digest.update(shared[i])
    return digest.hexdigest()

shared = []

if __name__ == "__main__":
    method = sys.argv[1]
    context = multiprocessing.get_context(method)
    rng = random.Random(7)
    if method == "fork":
        shared = [rng.randbytes(100) for _ in range(200_000)]
    for _ in range(2):
        with context.Pool(3) as pool:
            print("\\n".join(pool.map(job, range(6))))
        shared = [text[::-1] for text in shared]
    print(hashlib.sha256(b"".join(shared)).hexdigest())
"""

NUMPY = """
import hashlib
import numpy, pandas
rng = numpy.random.default_rng(42)
n = 1_500_000
frame = pandas.DataFrame({"group": rng.integers(0, 5000, n), "x": rng.random(n), "y": rng.integers(0, 1 << 40, n)})
print(frame.groupby("group").agg({"x": "max", "y": "sum"}).y.sum())
frame = frame.sort_values("y", kind="stable").reset_index(drop=True)
joined = frame.merge(frame.groupby("group").y.min().rename("least"), on="group")
print(hashlib.sha256(joined[["y", "least"]].to_numpy().tobytes()).hexdigest())
words = pandas.Series("w" + frame.y.head(200_000).astype(str))
print(words.str.upper().value_counts().sort_index().head(3).to_string())
matrix = rng.integers(0, 1000, (1200, 1200)).astype(numpy.float64)
print(int((matrix @ matrix).sum()))
"""

DUCKDB = """
import duckdb
db = duckdb.connect()
db.execute("SET threads = 2")
db.execute("SELECT setseed(0.42)")
db.execute("CREATE TABLE t AS SELECT i, (i * 2654435761) % 1000003 AS k, 'text-' || (i * 7919 % 999983) AS s "
           "FROM range(2_000_000) r(i)")
print(db.execute("SELECT count(*), sum(n), max(m) FROM (SELECT k % 100000 AS g, count(*) AS n, max(s) AS m "
                 "FROM t GROUP BY g)").fetchall())
print(db.execute("SELECT sum(hash(a.s) % 1000), count(*) FROM t a JOIN t b ON a.k = b.i").fetchall())
print(db.execute("SELECT s, i FROM t ORDER BY s DESC, i LIMIT 5").fetchall())
print(db.execute("SELECT sum(r * (i % 97)) FROM (SELECT i, row_number() OVER (ORDER BY s, i) AS r FROM t)").fetchall())
"""

GO = r"""
package main

/*
#include <stdlib.h>
#include <string.h>
static unsigned long fill(unsigned char *p, unsigned long n, unsigned seed) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < n; i++) { seed = seed * 1103515245u + 12345u; p[i] = seed >> 16; sum += p[i]; }
    return sum;
}
static unsigned long sum(unsigned char *p, unsigned long n) {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < n; i++) sum += p[i];
    return sum;
}
*/
import "C"

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"sync"
	"unsafe"
)

type row struct {
	id   int
	name string
	next *row
}

func job(which int) uint64 {
	random := rand.New(rand.NewSource(int64(which)))
	table := map[string]*row{}
	keys := []string{}
	var last *row
	for i := 0; i < 120000; i++ {
		key := fmt.Sprintf("key-%d-%d", random.Int31(), i)
		last = &row{i, key + key, last}
		table[key] = last
		keys = append(keys, key)
	}
	const size = 8 << 20
	memory := (*C.uchar)(C.malloc(size))
	want := C.fill(memory, size, C.uint(which))
	sum := uint64(0)
	for i := 0; i < 20000; i++ {
		r := table[keys[random.Intn(len(keys))]]
		sum = sum*31 + uint64(r.id+len(r.name))
	}
	for _, key := range keys {
		sum = sum*31 + uint64(table[key].id)
	}
	sort.Strings(keys)
	for i := 0; i < len(keys); i += 100 {
		sum = sum*31 + uint64(table[keys[i]].id)
	}
	runtime.GC()
	for r := last; r != nil; r = r.next {
		sum = sum*31 + uint64(r.name[4])
	}
	if C.sum(memory, size) != want {
		panic("C memory has changed")
	}
	C.free(unsafe.Pointer(memory))
	return sum
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println("child", job(9))
		return
	}
	results := make([]uint64, 4)
	var group sync.WaitGroup
	for i := range results {
		group.Add(1)
		go func() { defer group.Done(); results[i] = job(i) }()
	}
	group.Wait()
	fmt.Println(results)
	out, err := exec.Command(os.Args[0], "child").CombinedOutput()
	fmt.Print(string(out))
	if err != nil {
		panic(err)
	}
}
"""

POSTGRES = """
set -e
export LC_ALL=C PGDATA="$PWD/data"
initdb -A trust -U postgres --no-sync >initdb.log 2>&1 || { cat initdb.log; exit 1; }
pg_ctl -w -o "-k '$PWD' -c listen_addresses= -c shared_buffers=32MB -c work_mem=64MB -c fsync=off" -l log start >/dev/null || {
    cat log; exit 1; }
psql -h "$PWD" -U postgres -v ON_ERROR_STOP=1 -qAt <<'SQL' || status=1
CREATE TABLE t AS SELECT i, (i::bigint * 2654435761) % 1000003 AS k, 'text-' || (i::bigint * 7919 % 999983) AS s
    FROM generate_series(1, 300000) i;
CREATE INDEX ON t (k);
ANALYZE t;
SELECT count(*), sum(k), min(s), max(s) FROM t;
SELECT count(*), sum(length(a.s)) FROM t a JOIN t b ON a.k = b.i;
SELECT md5(string_agg(s, ',' ORDER BY s, i)) FROM t;
SQL
pg_ctl -w -m fast stop >/dev/null
rm -r "$PGDATA" initdb.log log
exit ${status:-0}
"""

CHROMIUM_PAGE = """<!DOCTYPE html><meta charset=utf-8><title>a page</title>
<style>body{margin:0;font:16px monospace;background:#fff}div{width:40px;height:20px;float:left}</style><body><script>
let seed = 42, text = '';
const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff);
const rows = [];
for (let i = 0; i < 200000; i++) rows.push({a: next(), b: 'x' + next()});
rows.sort((x, y) => x.a - y.a);
for (let i = 0; i < 600; i++) text += '<div style="background:#' + (rows[i * 300].a & 0xffffff).toString(16).padStart(6, '0') + '"></div>';
document.body.innerHTML = text;
</script>
"""

GIT = r"""
set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
cp -r "$INPUT/repository.git" copy.git
git -C copy.git -c pack.threads=2 -c gc.auto=0 repack -adfq --depth=50 --window=50
git -C copy.git fsck --full --strict 2>&1
git -C copy.git cat-file --batch-all-objects --batch | sha256sum
git -C copy.git count-objects -v | grep -E '^(count|in-pack|garbage)'
rm -rf copy.git
"""


def repository(directory: Path) -> None:
    """A bare repository with a few files in many versions, by git fast-import."""
    rng = random.Random(42)
    words = [f"word{number}" for number in range(5000)]
    files = {f"file{n}.txt": [" ".join(rng.choices(words, k=12)) for _ in range(4000)] for n in range(6)}
    parts = []
    for version in range(60):
        message = f"version {version}\n"
        parts.append(f"commit refs/heads/main\ncommitter A <a@example.org> {1_700_000_000 + version} +0000\n")
        parts.append(f"data {len(message)}\n{message}")
        for name, lines in files.items():
            for _ in range(20):
                lines[rng.randrange(len(lines))] = " ".join(rng.choices(words, k=12))
            text = "\n".join(lines)
            parts.append(f"M 100644 inline {name}\ndata {len(text)}\n{text}\n")
    (directory / "stream").write_text("".join(parts))
    make(
        ["git", "init", "-q", "--bare", "-b", "main", "repository.git"],
        ["sh", "-c", "git -C repository.git fast-import --quiet <stream"],
    )(directory)


def c_sources() -> Path | None:
    """Where cargo keeps the C sources of zstd, which the store is built with."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    return next(iter(sorted(home.glob("registry/src/*/zstd-sys-*/zstd/lib"))), None)


def chromium_verdict(_stdout: str, stderr: str) -> str:
    """A sandbox that refuses prints one line about it; all its other lines have times and process ids."""
    return "\n".join(sorted({line for line in stderr.splitlines() if "FATAL" in line or "sandbox" in line.lower()}))


def cases(quick: bool) -> list[Case]:
    """All cases, or those of the quick profile."""
    python = [sys.executable]
    zstd = c_sources()
    as_nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups " if os.geteuid() == 0 else "exec "
    java = source("Main.java", JAVA, ["javac", "Main.java"])
    programs = [
        script("node", ["node", "SCRIPT"], NODE),
        script("node-workers", ["node", "SCRIPT"], NODE_WORKERS),
        *(
            script(
                f"java-{name}",
                ["java", f"-XX:+Use{collector}GC", "-Xms64m", "-Xmx256m", "-XX:-UsePerfData", "-cp", '"$INPUT"', "Main"],
                    needs=("java", "javac"),
                prepare=java,
            )
            for name, collector in (("serial", "Serial"), ("g1", "G1"), ("z", "Z"))
        ),
        script("ruby", ["ruby", "SCRIPT"], RUBY),
        script("php", ["php", "SCRIPT"], PHP, quick=True),
        script("perl", ["perl", "SCRIPT"], PERL),
        script("r", ["Rscript", "--vanilla", "SCRIPT"], R),
        script("lua", ["lua5.4", "SCRIPT"], LUA),
        script("guile", ["guile", "--no-auto-compile", "SCRIPT"], GUILE),
        script("python-fork", [*python, "SCRIPT", "fork"], PYTHON_PROCESSES, quick=True),
        script("python-spawn", [*python, "SCRIPT", "spawn"], PYTHON_PROCESSES),
        script("pandas", [*python, "SCRIPT"], NUMPY, modules=("numpy", "pandas")),
        script("duckdb", [*python, "SCRIPT"], DUCKDB, modules=("duckdb",)),
        script(
            "clang",
            ["clang"],
            unless=None if zstd else "cargo has not fetched the sources of zstd-sys",
            command=("sh", "-c", f"clang -O2 -c '{zstd}'/c*/*.c && sha256sum *.o && rm *.o"),
        ),
        script(
            "rustc",
            ["cargo"],
            needs=("cargo", "rustc"),
            command=(
                *("sh", "-c"),
                "cargo build --offline --release -q -p overspill-vm --target-dir=$PWD/built "
                f"--manifest-path='{REPOSITORY}/Cargo.toml' && sha256sum built/release/*.rlib && rm -r built",
            ),
            # both look for their toolchains below $HOME, and the run has another $HOME
            extra={
                "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
                "CARGO_HOME": os.environ.get("CARGO_HOME", str(Path.home() / ".cargo")),
            },
        ),
        script("git-repack", ["git"], GIT, prepare=repository, command=("sh", "-c", GIT), quick=True),
        script(
            "ffmpeg",
            ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25:duration=3", "-threads", "2"]
            + ["-c:v", "libx264", "-preset", "medium", "-bitexact", "-f", "framemd5", "-"],
        ),
        script(
            "postgres",
            ["initdb"],
            POSTGRES,
            needs=("initdb", "pg_ctl", "psql", "setpriv"),
            command=("sh", "-c", f'{as_nobody}sh "$INPUT/script"'),
        ),
        script(
            "go",
            ["go"],
            prepare=source("main.go", GO, ["go", "build", "-o", "program", "main.go"]),
            needs=("go", "gcc"),
            command=("sh", "-c", 'exec "$INPUT/program"'),
        ),
        script(
            "chromium",
            ["chromium"],
            prepare=source("page.html", CHROMIUM_PAGE),
            command=(
                *("sh", "-c"),
                "chromium --headless --disable-gpu --hide-scrollbars --window-size=800,600 --user-data-dir=$PWD/profile "
                + ("--no-sandbox " if os.geteuid() == 0 else "")
                + '--screenshot=$PWD/page.png "file://$INPUT/page.html" && sha256sum page.png; status=$?; '
                "rm -rf profile page.png; exit $status",
            ),
        ),
    ]
    if quick:
        return [program for program in programs if program.quick]
    return [*programs, *map(tree, programs)]
