//! `strace -f`: which process has which file open at which offset, from single lines, and once from the real strace if there is
//! one.

use overspill_trace::{Format, OBJECT_SHIFT, Options, Trace, read, read_from};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn decode(text: &str) -> Trace {
    let options = Options { format: Some(Format::Strace), ..Options::default() };
    read_from(text.as_bytes(), Path::new("t"), 0, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

/// References as `path:page`, with `!` if they write.
fn told(text: &str) -> Vec<String> {
    let trace = decode(text);
    let one = |(index, &page): (usize, &u32)| {
        let number = trace.numbers[page as usize];
        let name = &trace.objects[(number >> OBJECT_SHIFT) as usize];
        format!("{name}:{}{}", number & ((1 << OBJECT_SHIFT) - 1), if trace.writes.get(index) { "!" } else { "" })
    };
    trace.pages.iter().enumerate().map(one).collect()
}

#[test]
fn offsets_of_reads_and_writes() {
    let text = "\
openat(AT_FDCWD, \"/a\", O_RDONLY|O_CLOEXEC) = 3
read(3, \"\\177ELF\\2\"..., 832) = 832
read(3, \"x\"..., 8192) = 8000
pread64(3, \"x\", 10, 4090) = 10
lseek(3, 40960, SEEK_SET) = 40960
read(3, \"\", 4096) = 0
open(\"/b\", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 4
write(4, \"x\", 4097) = 4097
write(4, \"x\", 1) = -1 ENOSPC (No space left on device)
writev(4, [{iov_base=\"a)\\\", b\", iov_len=6}], 1) = 6
open(\"/b\", O_WRONLY|O_APPEND) = 5
write(5, \"x\", 5000) = 5000
";
    let expected = ["/a:0", "/a:0", "/a:1", "/a:2", "/a:0", "/a:1", "/b:0!", "/b:1!", "/b:1!", "/b:1!", "/b:2!"];
    assert_eq!(told(text), expected);
    assert_eq!(decode(text).marks, 6, "three opens, a seek, the end of a file, an error");
}

#[test]
fn processes_have_tables_and_threads_share_them() {
    let text = "\
10 chdir(\"/src\") = 0
10 openat(AT_FDCWD, \"./x/../in\", O_RDONLY) = 3
10 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 11
11 read(3, \"\", 4096) = 4096
10 read(3, \"\", 4096) = 4096
11 close(3) = 0
11 openat(AT_FDCWD, \"out\", O_WRONLY|O_CREAT, 0666) = 3
11 write(3, \"\", 1) = 1
10 read(3, \"\", 4096) = 4096
10 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, exit_signal=0} => {parent_tid=[12]}, 88) = 12
12 close(3) = 0
12 openat(AT_FDCWD, \"/t\", O_RDONLY) = 3
10 read(3, \"\", 1) = 1
12 +++ exited with 0 +++
10 +++ killed by SIGTERM +++
";
    // Parent and child share the offset of files that were open at the fork. The child's own file does not concern the parent.
    assert_eq!(told(text), ["/src/in:0", "/src/in:1", "/src/out:0!", "/src/in:2", "/t:0"]);
}

#[test]
fn a_child_that_is_heard_of_before_its_birth() {
    // strace prints the child's first calls before the parent's vfork returns.
    let text = "\
10 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3
10 openat(AT_FDCWD, \"/c\", O_RDONLY|O_CLOEXEC) = 4
10 vfork( <unfinished ...>
11 dup2(3, 0) = 0
11 execve(\"/bin/x\", [\"x\"], 0x7ffd /* 9 vars */ <unfinished ...>
10 <... vfork resumed>) = 11
11 <... execve resumed>) = 0
11 read(0, \"\", 4096) = 4096
11 read(4, \"\", 4096) = 4096
10 read(4, \"\", 4096) = 4096
";
    assert_eq!(told(text), ["/a:0", "/c:0"], "4 was closed in the child by execve");
}

#[test]
fn calls_that_are_printed_in_two_parts() {
    let text = "\
1 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3
1 openat(AT_FDCWD, \"/b\", O_RDONLY <unfinished ...>
2 +++ exited with 0 +++
1 <... openat resumed>) = 4
1 read(4,  <unfinished ...>
1 <... read resumed>\"\"..., 4096) = 100
1 read(3, <unfinished ...>
1 <... read resumed> \"\"..., 4096) = 100
1 read(3, \"\", 4096) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
1 exit_group(0) = ?
";
    assert_eq!(told(text), ["/b:0", "/a:0"]);
}

#[test]
fn times_numbers_and_no_numbers() {
    for (prefix, child) in
        [("", "[pid 71] "), ("12:00:00 ", "[pid 71] 12:00:01 "), ("1700000000.123456 ", "[pid    71] 1700000000.2 ")]
    {
        let main = child.replace("71", "70");
        let text = format!(
            "{prefix}open(\"/a\", O_RDONLY) = 3\n{prefix}clone(flags=SIGCHLDstrace: Process 71 attached\n <unfinished ...>\n\
             {child}read(3, \"\", 1) = 1\n{main}<... clone resumed>, child_tidptr=0x7f) = 71\n{main}read(3, \"\", 4096) = 4096\n\
             {child}+++ exited with 0 +++\n{prefix}--- SIGCHLD {{si_signo=SIGCHLD}} ---\n{prefix}read(3, \"\", 1) = 1\n"
        );
        // The child's read waits for its parent's clone.
        assert_eq!(told(&text), ["/a:0", "/a:0", "/a:1", "/a:1"], "{text}");
    }
}

/// Each process makes the next one before its parent's clone has returned, and they were replayed by a recursion: the reader
/// overflowed its stack.
#[test]
fn many_generations_before_the_first_clone_returns() {
    let count = 100_000;
    let mut text = String::from("1 open(\"/a\", O_RDONLY) = 3\n1 clone(child_stack=NULL <unfinished ...>\n");
    for pid in 2..count {
        text += &format!("{pid} clone(child_stack=NULL) = {}\n{pid} read(3, \"\", 4096) = 4096\n", pid + 1);
    }
    text += "1 <... clone resumed>) = 2\n";
    let told = told(&text);
    // The youngest comes first, since its calls go before what its parent does after the clone.
    assert_eq!((told.len(), told[0].as_str(), told[count - 3].as_str()), (count - 2, "/a:0", "/a:99997"));
}

/// The reader looked at all processes without a parent for each of them, and at all of a torn line for each of its pieces: a file
/// of some megabytes took hours.
#[test]
fn many_processes_without_a_parent_and_many_pieces_of_a_line() {
    let start = Instant::now();
    let mut text = String::from("1 open(\"/a\", O_RDONLY) = 3\n1 clone(child_stack=NULL <unfinished ...>\n");
    for pid in 2..300_000 {
        text += &format!("{pid} close(3) = 0\n");
    }
    text += "1 read(3, \"\", 10) = 10\n";
    assert_eq!(told(&text), ["/a:0"]);

    let mut text = String::from("1 open(\"/a\", O_RDONLY) = 3\n1 read(3, \"");
    for pid in 2..100_000 {
        text += &format!("some bytes strace: Process {pid} attached\n");
    }
    text += "\", 4096) = 10\n";
    assert_eq!(told(&text), ["/a:0"]);
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
}

/// `strace --absolute-timestamps=unix` without `-f` puts whole seconds before a call, and no process id. Each second was taken for
/// a new process, which had none of the files open, so most references were lost in silence, or began at offset 0 again.
#[test]
fn times_in_whole_seconds_are_not_process_ids() {
    let text = "\
1795975040 openat(AT_FDCWD, \"/a\", O_RDONLY|O_CLOEXEC) = 3</a>
1795975040 read(3</a>, \"A\"..., 4096) = 4096
1795975041 read(3</a>, \"B\"..., 4096) = 4096
1795975042 read(3</a>, \"C\"..., 4096) = 4096
1795975042 +++ exited with 0 +++
";
    let pages = ["/a:0", "/a:1", "/a:2"];
    assert_eq!(told(text), pages);
    assert_eq!(told(&text.replace("</a>", "")), pages, "without strace -y");
    assert_eq!(told(&text.replace("179597504", "4194304 179597504")), pages, "with the greatest process id");
}

#[test]
fn paths_beside_descriptors() {
    let text = "\
openat(AT_FDCWD</home/me>, \"x\", O_RDONLY) = 3</home/me/real, (x)>
read(3</home/me/real, (x)>, \"\", 10) = 10
read(0</home/me/stdin\\76>, \"\", 10) = 10
read(7<pipe:[1234]>, \"\", 10) = 10
write(1</dev/pts/0<char 136:0>>, \"\", 10) = 10
openat(5</home/me>, \"y\", O_RDONLY) = 6
read(6, \"\", 10) = 10
write(2</tmp/gone (deleted)>, \"\", 10) = 10
";
    assert_eq!(told(text), ["/home/me/real, (x):0", "/home/me/stdin>:0", "/home/me/y:0", "/tmp/gone:0!"]);
}

#[test]
fn mappings_end_with_the_file() {
    let text = "\
openat(AT_FDCWD, \"/lib.so\", O_RDONLY) = 3
fstat(3, {st_mode=S_IFREG|0644, st_size=9000, ...}) = 0
mmap(NULL, 40960, PROT_READ, MAP_PRIVATE|MAP_DENYWRITE, 3, 0) = 0x7f8
mmap(0x7f8, 8192, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE, 3, 0x1000) = 0x7f8
mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f9
mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE, 3, 0) = 0x7fa
mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0x2000) = 0x7fb
mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3, 0x3000) = 0x7fc
";
    assert_eq!(told(text), ["/lib.so:0", "/lib.so:1", "/lib.so:2", "/lib.so:2!"]);
}

/// A 32-bit program that maps pages 8 to 11 of a file calls `mmap2` with 8, and strace prints 0x8000. These are lines of a real
/// strace 6.1. They were taken for page 0x8000, which is beyond the file's end, and so for nothing.
#[test]
fn a_mapping_of_a_32_bit_program() {
    let text = "\
17294 open(\"/a\", O_RDONLY) = 3</a>
17294 fstat64(3</a>, {st_mode=S_IFREG|0644, st_size=163840, ...}) = 0
17294 mmap2(NULL, 16384, PROT_READ, MAP_PRIVATE, 3</a>, 0x8000) = 0xf7fe2000
17294 exit(0)                           = ?
17294 +++ exited with 0 +++
";
    assert_eq!(told(text), ["/a:8", "/a:9", "/a:10", "/a:11"]);
}

/// A program writes the first page of a file of 40 pages, and maps the file. The length was unknown, so the write was taken for it,
/// and 39 of the 40 pages were left out in silence.
#[test]
fn a_write_does_not_tell_a_files_length() {
    let open = "100 openat(AT_FDCWD, \"/a\", O_RDWR|O_CLOEXEC) = 3\n100 pwrite64(3, \"zzzz\"..., 4096, 0) = 4096\n";
    let map = "100 mmap(NULL, 163840, PROT_READ, MAP_SHARED, 3, 0) = 0x7f6468df7000\n";
    assert_eq!(told(&format!("{open}{map}")).len(), 1 + 40);
    // A length that is known from the beginning is raised.
    let new = open.replace("O_RDWR", "O_RDWR|O_CREAT|O_TRUNC");
    assert_eq!(told(&format!("{new}{map}")), ["/a:0!", "/a:0"]);
    let unique = open.replace("O_RDWR", "O_RDWR|O_CREAT|O_EXCL");
    assert_eq!(told(&format!("{unique}{map}")), ["/a:0!", "/a:0"]);
}

/// The lengths that Rust's and newer C libraries ask for by statx, 32-bit programs by fstatat64, and others by a seek to the end,
/// were not read. Each mapping here is of ten pages, in a file of 9000 bytes.
#[test]
fn calls_that_tell_a_files_length() {
    for call in [
        "fstat(3, {st_mode=S_IFREG|0644, st_size=9000, ...}) = 0",
        "newfstatat(3, \"\", {st_mode=S_IFREG|0644, st_size=9000, ...}, AT_EMPTY_PATH) = 0",
        "fstatat64(3, \"\", {st_mode=S_IFREG|0644, st_size=9000, ...}, AT_EMPTY_PATH) = 0",
        "statx(3, \"\", AT_STATX_SYNC_AS_STAT|AT_EMPTY_PATH, STATX_ALL, {stx_mask=STATX_ALL|STATX_MNT_ID, stx_attributes=0, \
         stx_mode=S_IFREG|0644, stx_size=9000, ...}) = 0",
        "statx(3, NULL, AT_EMPTY_PATH, STATX_SIZE, {stx_mask=STATX_ALL, stx_mode=S_IFREG|0644, stx_size=9000, ...}) = 0",
        "lseek(3, 0, SEEK_END) = 9000",
        "lseek(3, -1000, SEEK_END) = 8000",
        "_llseek(3, 0, [9000], SEEK_END) = 0",
    ] {
        let text =
            format!("openat(AT_FDCWD, \"/a\", O_RDONLY) = 3\n{call}\nmmap(NULL, 40960, PROT_READ, MAP_SHARED, 3, 0) = 0x7f\n");
        assert_eq!(told(&text), ["/a:0", "/a:1", "/a:2"], "{call}");
    }
    let other = "openat(AT_FDCWD, \"/a\", O_RDONLY) = 3\nstatx(AT_FDCWD, \"/b\", 0, STATX_ALL, {stx_size=5, ...}) = 0\n\
                 lseek(3, 8192, SEEK_SET) = 8192\nmmap(NULL, 16384, PROT_READ, MAP_SHARED, 3, 0) = 0x7f\n";
    assert_eq!(told(other).len(), 4, "neither another file's length nor a seek from the start");
}

/// A program makes a new file (mkstemp), gives it its length by fallocate, as posix_fallocate does, and maps it. The length was
/// taken for 0, as O_EXCL says, so the mapping counted nothing.
#[test]
fn a_file_that_is_allocated_has_a_length() {
    for (calls, pages) in [
        ("fallocate(3, 0, 0, 40960) = 0", 10),
        ("fallocate(3, 0, 4096, 4096) = 0\nfallocate(3, 0, 0, 10) = 0", 2),
        ("truncate(\"/a\", 12288) = 0", 3),
        ("fallocate(3, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 0, 40960) = 0", 0),
        ("fallocate(3, 0, 0, 8192) = 0\nfallocate(3, FALLOC_FL_COLLAPSE_RANGE, 0, 4096) = 0", 10), // not known any more
    ] {
        let open = "openat(AT_FDCWD, \"/a\", O_RDWR|O_CREAT|O_EXCL, 0600) = 3\nread(3, \"\", 1) = 1";
        let map = "mmap(NULL, 40960, PROT_READ, MAP_SHARED, 3, 0) = 0x7f";
        assert_eq!(told(&format!("{open}\n{calls}\n{map}\n")).len(), 1 + pages, "{calls}");
    }
}

/// A log of unknown length is appended to. The bytes were counted as its page 0.
#[test]
fn appends_to_a_file_of_unknown_length_are_not_placed() {
    let open = "openat(AT_FDCWD, \"/log\", O_RDWR|O_APPEND) = 3\nopenat(AT_FDCWD, \"/a\", O_RDONLY) = 4\nread(4, \"\", 1) = 1\n";
    let write = "write(3, \"y\"..., 4096) = 4096\n";
    let unknown = format!("{open}{write}read(3, \"\", 4096) = 10\n{write}");
    assert_eq!(told(&unknown), ["/a:0"]);
    // The program reads where its write ended, which is unknown, too.
    assert_eq!((decode(&unknown).unplaced, decode(&unknown).marks), (3, 5));
    let later = format!("{open}{write}lseek(3, 0, SEEK_END) = 45056\n{write}");
    assert_eq!((told(&later), decode(&later).unplaced), (vec!["/a:0".to_owned(), "/log:11!".to_owned()], 1));
    let before = format!("{open}lseek(3, 0, SEEK_END) = 40960\n{write}");
    assert_eq!((told(&before), decode(&before).unplaced), (vec!["/a:0".to_owned(), "/log:10!".to_owned()], 0));
}

/// A program maps a file of 5 GiB. The trace was refused, since no request of more than 2^20 pages was held to be right. Requests
/// have a limit in bytes, so that small pages do not make a valid trace a broken one.
#[test]
fn long_mappings_and_too_long_ones() {
    let with = |call: &str, page_bytes: Option<u32>| {
        let text = format!("openat(AT_FDCWD, \"/model\", O_RDONLY) = 3\n{call}\n");
        let options = Options { format: Some(Format::Strace), page_bytes, ..Options::default() };
        let trace = read_from(text.as_bytes(), Path::new("t"), 0, &options, &mut |_| {});
        trace.map(|trace| trace.pages.len()).map_err(|error| error.to_string())
    };
    let known = |size: u64, length: u64| {
        format!(
            "fstat(3, {{st_mode=S_IFREG|0644, st_size={size}, ...}}) = 0\nmmap(NULL, {length}, PROT_READ, MAP_SHARED, 3, 0) = 0x7f"
        )
    };
    assert_eq!(with(&known(5 << 30, 5 << 30), None), Ok(5 << 18));
    assert_eq!(with(&known(8192, 1 << 40), None), Ok(2), "databases map more than their file has");
    let too_long = with(&known(1 << 40, 1 << 40), None).unwrap_err();
    assert!(too_long.contains("line 3") && too_long.contains("take a larger --page-size"), "{too_long}");
    assert_eq!(with(&known(1 << 40, 1 << 40), Some(1 << 20)), Ok(1 << 20));
    // The longest read that Linux has.
    let read = |bytes: u64| format!("read(3, \"\"..., {bytes}) = {bytes}");
    assert_eq!(with(&read(0x7fff_f000), Some(512)), Ok(0x3f_fff8));
    for page_bytes in [512, 4096, 1 << 20] {
        let error = with(&read(5 << 30), Some(page_bytes)).unwrap_err();
        assert!(error.contains("one request of 5368709120 bytes"), "{error}");
    }
    assert!(with(&read(0x7fff_f000), Some(1)).unwrap_err().contains("take a larger --page-size"));
}

#[test]
fn copies_inside_the_kernel() {
    let text = "\
open(\"/a\", O_RDONLY) = 3
open(\"/b\", O_WRONLY) = 4
copy_file_range(3, NULL, 4, [4096] => [4106], 10, 0) = 10
sendfile(4, 3, [8192] => [8202], 10) = 10
sendfile(4, 3, NULL, 10) = 10
";
    assert_eq!(told(text), ["/a:0", "/b:1!", "/a:2", "/b:0!", "/a:0", "/b:0!"]);
}

#[test]
fn a_programs_output_in_between_is_an_error() {
    let options = Options { format: Some(Format::Strace), ..Options::default() };
    let error = read_from(&b"open(\"/a\", 0) = 3\nhello world\n"[..], Path::new("t"), 0, &options, &mut |_| {}).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("line 2 (read as strace)") && text.contains("strace -o FILE"), "{text}");
}

/// Against a real strace of real programs, whose reads are known.
#[test]
fn the_real_strace() {
    let directory = std::env::temp_dir().join(format!("overspill-strace-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let input = directory.join("input");
    std::fs::write(&input, vec![b'x'; 5 * 4096]).unwrap();
    let log = directory.join("log.strace");
    let script = "cat input | cat > copy; (cat copy >/dev/null) & wait; dd if=input of=dd bs=4096 count=2 2>/dev/null";
    let ran = Command::new("strace").args(["-f", "-o"]).arg(&log).args(["sh", "-c", script]).current_dir(&directory).status();
    if !ran.is_ok_and(|status| status.success()) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "NOT RUN: strace cannot be run here");
        let _ = std::fs::remove_dir_all(&directory);
        return;
    }
    let trace = read(&log, &Options::default(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let _ = std::fs::remove_dir_all(&directory);
    let pages = |name: &str, write: bool| {
        let of = |index: usize| {
            let number = trace.numbers[trace.pages[index] as usize];
            trace.objects[(number >> OBJECT_SHIFT) as usize] == name && trace.writes.get(index) == write
        };
        (0..trace.pages.len()).filter(|&index| of(index)).count()
    };
    assert_eq!((pages("input", false), pages("input", true)), (7, 0), "five by cat, two by dd");
    assert_eq!((pages("copy", true), pages("copy", false)), (5, 5));
    assert_eq!(pages("dd", true), 2);
}
