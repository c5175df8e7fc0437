//! Each reader with good and broken input; packing; guessing; our own format there and back; and no input makes a reader panic.

use overspill_trace::compact::Writer;
use overspill_trace::{
    Error, Format, Kind, Options, Packer, Packing, Position, Trace, read, read_from, write_compact, write_lines,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;

fn decode(content: &[u8], format: Option<Format>) -> Result<Trace, Error> {
    named(content, "trace", format)
}

fn named(content: &[u8], name: &str, format: Option<Format>) -> Result<Trace, Error> {
    read_from(content, Path::new(name), content.len() as u64, &Options { format, ..Options::default() }, &mut |_| {})
}

/// Page numbers and write bits, in order.
fn references(trace: &Trace) -> Vec<(u64, bool)> {
    trace.pages.iter().enumerate().map(|(index, &page)| (trace.numbers[page as usize], trace.writes.get(index))).collect()
}

fn reads(format: Format, content: &[u8]) -> Vec<(u64, bool)> {
    references(&decode(content, Some(format)).unwrap_or_else(|error| panic!("{error}")))
}

#[track_caller]
fn broken(format: Format, content: &[u8], place: Position, words: &str) {
    match decode(content, Some(format)) {
        Err(Error::Broken { position, ref message, .. }) => {
            assert_eq!(position, place, "{message}");
            assert!(message.contains(words), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn lines() {
    let text = b"# a comment\n7\n0x1F w # another\r\n7 r\n";
    assert_eq!(reads(Format::Lines, text), [(7, false), (31, true), (7, false)]);
    broken(Format::Lines, b"1\n2\nx3\n", Position::Line(3), "\"x3\" is not a page number");
    broken(Format::Lines, b"1 x\n", Position::Line(1), "neither r nor w");
    broken(Format::Lines, b"1 r 2\n", Position::Line(1), "too much");
    broken(Format::Lines, b"1\n*\n", Position::Line(2), "--trace-format lirs");
    broken(Format::Lines, b"1\n\n2\n", Position::Line(3), "blank");
    broken(Format::Lines, b"18446744073709551616\n", Position::Line(1), "not a page number");
    assert_eq!(reads(Format::Lines, b"1\n\n\n"), [(1, false)]);
}

#[test]
fn lirs() {
    let trace = decode(b"5\n*\n5\n6\n\n", Some(Format::Lirs)).unwrap();
    assert_eq!((trace.pages, trace.numbers, trace.marks), (vec![0, 0, 1], vec![5, 6], 1));
    broken(Format::Lirs, b"5\n0x6\n", Position::Line(2), "neither a decimal block number");
}

#[test]
fn arc() {
    assert_eq!(reads(Format::Arc, b"10 3 0 0\n11 1 0 1\n"), [(10, false), (11, false), (12, false), (11, false)]);
    broken(Format::Arc, b"10 3 0 0\n11 1 0\n", Position::Line(2), "no sequence number");
    broken(Format::Arc, b"10 0 0 0\n", Position::Line(1), "no blocks");
    broken(Format::Arc, b"10 9999999999 0 0\n", Position::Line(1), "cannot be right");
    broken(Format::Arc, b"18446744073709551615 2 0 0\n", Position::Line(1), "64 bits");
}

#[test]
fn lackey() {
    let text = b"==12== Lackey, an example Valgrind tool\nI  04001000,3\n L 1ffeffe7f0,8\n S 2000,4\n M 2000,4\n";
    assert_eq!(reads(Format::Lackey, text), [(0x4001, false), (0x1ffeffe, false), (2, true), (2, true)]);
    // The load of 8 bytes two bytes before a page's end touches two pages.
    assert_eq!(reads(Format::Lackey, b" L 1ffefffffe,8\n"), [(0x1ffefff, false), (0x1fff000, false)]);
    broken(Format::Lackey, b"I  04001000,3\nhello\n", Position::Line(2), "--log-file");
    broken(Format::Lackey, b" L zz,3\n", Position::Line(1), "hexadecimal");
}

#[test]
fn addresses() {
    assert_eq!(reads(Format::Addr, b"s 0x1fffff50 1\nl 0x3000 6\nl 4096\n"), [(0x1ffff, true), (3, false), (1, false)]);
    broken(Format::Addr, b"x 0x10 1\n", Position::Line(1), "neither s");
    let options = Options { format: Some(Format::Addr), page_bytes: Some(65536), sample: None };
    let trace = read_from(&b"l 0x1ffff 1\n"[..], Path::new("t"), 0, &options, &mut |_| {}).unwrap();
    assert_eq!((trace.numbers, trace.page_bytes), (vec![1], Some(65536)));
}

#[test]
fn pages() {
    assert_eq!(reads(Format::Pages, b"r 401a\nw 1fff000\n"), [(0x401a, false), (0x1fff000, true)]);
    broken(Format::Pages, b"r 401a\nr 0x1\n", Position::Line(2), "hexadecimal");
}

#[test]
fn msr() {
    let text = b"128166372003061629,hm,1,Read,8191,2,1\n128166372003061630,hm,0,Write,4096,4096,1\n1,hm,1,Read,0,0,1\n";
    let trace = decode(text, Some(Format::Msr)).unwrap();
    assert_eq!(references(&trace), [(1, false), (2, false), (1 << 36 | 1, true)]);
    assert_eq!((trace.objects, trace.marks), (vec!["hm disk 1".to_owned(), "hm disk 0".to_owned()], 1));
    broken(Format::Msr, b"1,hm,1,Trim,0,1,1\n", Position::Line(1), "neither Read nor Write");
    broken(Format::Msr, b"1,hm,1,Read,0,1\n", Position::Line(1), "6 fields");
}

/// A record of vscsi's version 1 or 2.
fn vscsi(version: u8, command: u8, block: u64) -> Vec<u8> {
    let kind = [command, 0, 0, version];
    let mut record = if version == 1 { [&[0; 12][..], &kind].concat() } else { [&kind[..], &[0; 12]].concat() };
    record.extend(block.to_le_bytes());
    record.extend([0; 16][..if version == 1 { 8 } else { 16 }].iter());
    record
}

#[test]
fn vscsi_in_both_versions() {
    for version in [1, 2] {
        let content = [vscsi(version, 0x28, 77), vscsi(version, 0x2a, 78)].concat();
        assert_eq!(content.len(), if version == 1 { 64 } else { 80 });
        assert_eq!(reads(Format::Vscsi, &content), [(77, false), (78, true)]);
        assert_eq!(decode(&content, None).unwrap().format(), Format::Vscsi);
    }
    let content = [vscsi(1, 0x28, 1), vscsi(1, 0x28, 2)].concat();
    broken(Format::Vscsi, &content[..50], Position::Byte(32), "middle of a record: 18 of 32 bytes");
    let content = [vscsi(1, 0x28, 1), vscsi(3, 0x28, 2)].concat();
    broken(Format::Vscsi, &content[..64], Position::Byte(32), "version field");
}

#[test]
fn bare_numbers() {
    assert_eq!(reads(Format::U32le, &[1, 0, 0, 0, 0, 1, 0, 0]), [(1, false), (256, false)]);
    assert_eq!(reads(Format::U32be, &[1, 0, 0, 0, 0, 1, 0, 0]), [(1 << 24, false), (1 << 16, false)]);
    broken(Format::U32le, &[1, 0, 0, 0, 5], Position::Byte(4), "1 of 4 bytes");
    let guessed = decode(&[1, 0, 0, 0, 0, 1, 0, 0], None);
    assert!(matches!(guessed, Err(Error::UnknownFormat { .. })), "{guessed:?}");
    assert_eq!(named(&[1, 0, 0, 0], "x.u32le.gz", None).unwrap().format(), Format::U32le);
}

/// A loop over the pages 1, 2 and 3 in a file called `loop3.u32le`. Six such numbers also look like a record of libCacheSim's, and
/// the file was read as that: with a sixth of the references, to pages that it does not have.
#[test]
fn the_name_says_bare_numbers() {
    let content: Vec<u8> = (0..6000u32).flat_map(|n| (n % 3 + 1).to_le_bytes()).collect();
    assert_eq!(decode(&content, None).unwrap().format(), Format::Oracle, "the content alone looks like that");
    let trace = named(&content, "loop3.u32le", None).unwrap();
    assert_eq!((trace.format(), trace.guess.why), (Format::U32le, "by its name"));
    assert_eq!((trace.pages.len(), trace.numbers), (6000, vec![1, 2, 3]));
    assert_eq!(named(&content, "loop3.u32be.zst", None).unwrap().format(), Format::U32be);
    assert_eq!(named(&content, "loop3.vscsi", None).unwrap().format(), Format::Oracle, "it cannot be what the name says");
}

#[test]
fn oracle_general() {
    let record = |time: u32, object: u64, next: i64| {
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &100u32.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let content = [record(0, u64::MAX, 2), record(0, 5, -1), record(3, u64::MAX, i64::MAX)].concat();
    let trace = decode(&content, None).unwrap();
    assert_eq!((trace.format(), trace.pages, trace.numbers), (Format::Oracle, vec![0, 1, 0], vec![u64::MAX, 5]));
    broken(Format::Oracle, &content[..40], Position::Byte(24), "16 of 24 bytes");
}

#[test]
fn files_that_are_not_there_or_empty() {
    let error = read(Path::new("/nonexistent/trace"), &Options::default(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    let error = read(Path::new("/"), &Options::default(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("is a directory"), "{error}");
    assert!(matches!(decode(b"", None), Err(Error::Empty { .. })));
    for &format in Format::ALL {
        assert!(matches!(decode(b"", Some(format)), Err(Error::Empty { .. })), "{format}");
    }
    assert!(matches!(decode(b"# nothing\n", Some(Format::Lines)), Err(Error::Empty { .. })));
}

#[test]
fn guesses() {
    for (content, format) in [
        (&b"1\n2\n3"[..], Format::Lines),
        (b"1\n*\n3\n", Format::Lirs),
        (b"0x10 r\n", Format::Lines),
        (b"1 1 0 0\n", Format::Arc),
        (b"s 0x10 1\n", Format::Addr),
        (b"r 10\nw ff\n", Format::Pages),
        (b"==1== Lackey\nI  1000,3\n", Format::Lackey),
        (b"1,web,0,Read,0,4096,5\n", Format::Msr),
        (b"10 openat(AT_FDCWD, \"/a\", O_RDONLY) = 3\n10 read(3, \"x\", 1) = 1\n", Format::Strace),
    ] {
        let trace = decode(content, None).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((trace.format(), trace.guess.why), (format, "by its content"));
    }
    // If the content could be several formats, the name decides. If it cannot be what the name says, the content decides.
    assert_eq!(named(b"1\n2\n", "x.lirs", None).unwrap().format(), Format::Lirs);
    assert_eq!(named(b"1 1 0 0\n", "x.lirs", None).unwrap().format(), Format::Arc);
    // A trace with a mistake is read in the format that it has up to there, so that the mistake is found.
    let error = decode(b"r 10\nr 11\nq 12\n", None).unwrap_err();
    assert!(error.to_string().contains("line 3 (read as pages)"), "{error}");
    let error = decode(b"Dear reader,\n", None).unwrap_err();
    assert!(error.to_string().contains("name its format with --trace-format"), "{error}");
}

fn packed(content: &[u8], packing: Packing) -> Vec<u8> {
    let mut packer = Packer::new(Vec::new(), packing).unwrap();
    packer.write_all(content).unwrap();
    packer.finish().unwrap()
}

#[test]
fn packed_traces() {
    let text: String = (0..100_000).map(|n| format!("{}\n", n * 7919 % 10_007)).collect();
    let plain = decode(text.as_bytes(), None).unwrap();
    for packing in [Packing::Gzip, Packing::Zstd, Packing::Xz] {
        let content = packed(text.as_bytes(), packing);
        let trace = decode(&content, None).unwrap();
        assert_eq!((trace.packing, &trace.pages), (packing, &plain.pages));
        // Cut short, and damaged in the middle.
        let cut = &content[..content.len() / 2];
        let mut damaged = content.clone();
        damaged[content.len() / 2] ^= 0x10;
        for (broken, words) in [(cut, "cut short"), (&damaged[..], "")] {
            match decode(broken, Some(Format::Lines)) {
                Err(Error::Broken { message, .. }) => assert!(message.contains(words), "{packing}: {message}"),
                other => panic!("{packing}: {:?}", other.map(|trace| trace.pages.len())),
            }
        }
    }
    // Members one after the other, as `cat a.gz b.gz` makes them, are one trace.
    for packing in [Packing::Gzip, Packing::Zstd, Packing::Xz] {
        let content = [packed(b"1\n", packing), packed(b"2\n", packing)].concat();
        assert_eq!(reads(Format::Lines, &content), [(1, false), (2, false)], "{packing}");
    }
}

/// A packed file with something appended was reported as cut short ("copy it again"), or as damaged.
#[test]
fn what_follows_packed_data() {
    for packing in [Packing::Gzip, Packing::Zstd, Packing::Xz] {
        let member = packed(b"1\n2\n", packing);
        for rest in [&b"x"[..], b"\n", b"\0", b"3\n4\n", b"<html>some longer text that a server put there</html>", &[0; 517]] {
            for members in 1..=2 {
                let content = [&member.repeat(members)[..], rest].concat();
                let Err(Error::Broken { message, .. }) = decode(&content, Some(Format::Lines)) else {
                    panic!("{packing}: {rest:?}")
                };
                // groups of four zeroes belong to xz
                let zeroes = if packing == Packing::Xz && rest.len() == 517 { 516 } else { 0 };
                let end = member.len() * members + zeroes;
                let begin = format!("the {packing} data end at byte {end} of the file, and what follows is no {packing} data");
                assert!(message.starts_with(&begin) && !message.contains("copy it again"), "{packing}, {rest:?}: {message}");
            }
        }
        // A rest that begins like a member is a member that was cut short.
        let cut = [&member[..], &member[..member.len() - 3]].concat();
        let Err(Error::Broken { message, .. }) = decode(&cut, Some(Format::Lines)) else { panic!("{packing}: cut") };
        assert!(message.contains("cut short"), "{packing}: {message}");
    }
    let padded = [&packed(b"1\n", Packing::Xz)[..], &[0; 8], &packed(b"2\n", Packing::Xz), &[0; 4]].concat();
    assert_eq!(reads(Format::Lines, &padded), [(1, false), (2, false)], "padding between and after the streams of an xz file");
    // A skippable frame of zstd is neither content nor a mistake.
    let skipped = [&packed(b"1\n", Packing::Zstd)[..], b"\x5a\x2a\x4d\x18\x03\0\0\0abc", &packed(b"2\n", Packing::Zstd)].concat();
    assert_eq!(reads(Format::Lines, &skipped), [(1, false), (2, false)]);
}

#[test]
fn progress_reaches_the_end() {
    let text: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    let mut last = 0;
    read_from(text.as_bytes(), Path::new("t"), text.len() as u64, &Options::default(), &mut |progress| {
        assert!(progress.bytes >= last && progress.bytes_total == text.len() as u64);
        last = progress.bytes;
    })
    .unwrap();
    assert_eq!(last, text.len() as u64);
}

#[test]
fn a_sample_keeps_some_pages_with_all_their_references() {
    let text: String = (0..100_000).map(|n| format!("{}\n", n * 7919 % 10_007)).collect();
    let all = decode(text.as_bytes(), None).unwrap();
    let options = Options { sample: Some(0.1), ..Options::default() };
    let sample = read_from(text.as_bytes(), Path::new("t"), 0, &options, &mut |_| {}).unwrap();
    assert_eq!(sample.references_total, 100_000);
    // 1000.7 expected; the standard deviation is 30.
    assert!((850..1150).contains(&sample.numbers.len()), "{}", sample.numbers.len());
    let kept: std::collections::HashSet<u64> = sample.numbers.iter().copied().collect();
    let expected: Vec<_> = references(&all).into_iter().filter(|(number, _)| kept.contains(number)).collect();
    assert_eq!(references(&sample), expected);
    // Ten parts have everything once.
    let parts = all.split(10);
    assert_eq!(parts.iter().map(|part| part.pages.len()).sum::<usize>(), all.pages.len());
    assert_eq!(parts.iter().map(|part| part.unique).sum::<u32>(), all.unique());
    assert!(parts.iter().all(|part| part.pages.len() == part.writes.len() && (850..1150).contains(&part.unique)));
}

#[test]
fn a_page_size_that_the_trace_does_not_have() {
    let content = compact(&[(1, false, 0)], false);
    let options = Options { page_bytes: Some(8192), ..Options::default() };
    let error = read_from(&content[..], Path::new("t"), 0, &options, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("recorded with pages of 4096 bytes"), "{error}");
}

/// `trace convert` of a trace of bare page numbers wrote that its pages have 4096 bytes, which nobody had said. `sim` then refused
/// the result with `--page-size 512`, which it takes for the original.
#[test]
fn a_page_size_that_nobody_knows_stays_unknown() {
    let again = |content: &[u8], format, first: Option<u32>, second: Option<u32>| {
        let options = Options { format: Some(format), page_bytes: first, sample: None };
        let trace = read_from(content, Path::new("t"), 0, &options, &mut |_| {}).unwrap();
        let options = Options { page_bytes: second, ..Options::default() };
        let compact = write_compact(&trace, Vec::new()).unwrap();
        read_from(&compact[..], Path::new("t"), 0, &options, &mut |_| {}).map(|trace| (trace.page_bytes, trace.page_bytes()))
    };
    assert_eq!(again(b"1\n2\n", Format::Lines, None, None).unwrap(), (None, 4096));
    assert_eq!(again(b"1\n2\n", Format::Lines, None, Some(512)).unwrap(), (Some(512), 512));
    // It is known if the user has said it, or if addresses were cut into pages of that size.
    assert_eq!(again(b"1\n2\n", Format::Lines, Some(512), None).unwrap(), (Some(512), 512));
    assert_eq!(again(b"l 0x1ffff 1\n", Format::Addr, None, None).unwrap(), (Some(4096), 4096));
    assert!(again(b"l 0x1ffff 1\n", Format::Addr, None, Some(512)).is_err());
}

fn events() -> impl Strategy<Value = Vec<(u64, bool, usize)>> {
    // Near each other, as most references are, and anywhere.
    let page = prop_oneof![0..200u64, any::<u64>(), Just(u64::MAX), (0..64u32).prop_map(|bit| 1u64 << bit)];
    vec((page, any::<bool>(), 0..4usize), 1..400)
}

fn compact(events: &[(u64, bool, usize)], kinds: bool) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 4096, kinds).unwrap();
    for &(page, write, kind) in events {
        writer.event(page, write, Kind::ALL[kind]).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn a_compact_trace_of_several_blocks() {
    let events: Vec<_> = (0..200_000u64).map(|n| (n * 31 % 5000, n % 3 == 0, 0)).collect();
    let trace = decode(&compact(&events, false), None).unwrap();
    assert_eq!(references(&trace), events.iter().map(|&(page, write, _)| (page, write)).collect::<Vec<_>>());
    assert_eq!((trace.format(), trace.kinds, trace.page_bytes), (Format::Overspill, None, Some(4096)));
}

proptest! {
    /// The reader reads what the writer has written. To either output format and back nothing changes.
    #[test]
    fn there_and_back(events in events(), kinds in any::<bool>()) {
        let trace = decode(&compact(&events, kinds), None).unwrap();
        let expected: Vec<_> = events.iter().map(|&(page, write, _)| (page, write)).collect();
        prop_assert_eq!(references(&trace), expected.clone());
        let expected_kinds = kinds.then(|| events.iter().map(|&(_, _, kind)| Kind::ALL[kind]).collect::<Vec<_>>());
        prop_assert_eq!(&trace.kinds, &expected_kinds);
        let again = decode(&write_compact(&trace, Vec::new()).unwrap(), None).unwrap();
        prop_assert_eq!(references(&again), expected.clone());
        prop_assert_eq!(&again.kinds, &expected_kinds);
        let lines = decode(&write_lines(&trace, Vec::new()).unwrap(), Some(Format::Lines)).unwrap();
        prop_assert_eq!(references(&lines), expected);
    }

    /// Each wrong bit or missing byte of a compact trace is an error that says where.
    #[test]
    fn every_damage_is_found(events in events(), kinds in any::<bool>(), place in any::<prop::sample::Index>(), bit in 0..8u32) {
        let whole = compact(&events, kinds);
        let mut damaged = whole.clone();
        damaged[place.index(whole.len())] ^= 1 << bit;
        let cut = &whole[..place.index(whole.len())];
        for content in [&damaged[..], cut] {
            match decode(content, Some(Format::Overspill)) {
                Err(Error::Broken { position: Position::Byte(at), .. }) => prop_assert!(at <= whole.len() as u64),
                Err(Error::Empty { .. }) => prop_assert!(content.is_empty()),
                other => prop_assert!(false, "{:?}", other.map(|trace| trace.pages.len())),
            }
        }
    }

    /// Any bytes give a trace, or an error that says where.
    #[test]
    fn no_bytes_make_a_reader_panic(bytes in vec(any::<u8>(), 0..300)) {
        for format in Format::ALL.iter().copied().map(Some).chain([None]) {
            decode_and_check(&bytes, format)?;
        }
    }

    /// The same for input that is nearly a trace: lines with words that the readers know.
    #[test]
    fn no_near_miss_makes_a_reader_panic(words in vec(0..WORDS.len(), 0..60)) {
        let text: Vec<u8> = words.iter().flat_map(|&word| WORDS[word].bytes()).collect();
        for format in Format::ALL.iter().copied().map(Some).chain([None]) {
            decode_and_check(&text, format)?;
        }
    }
}

fn decode_and_check(bytes: &[u8], format: Option<Format>) -> Result<(), TestCaseError> {
    match decode(bytes, format) {
        Ok(trace) => {
            prop_assert!(!trace.pages.is_empty() && trace.writes.len() == trace.pages.len());
            prop_assert!(trace.pages.iter().all(|&page| page < trace.unique()));
        }
        Err(Error::Broken { position, .. }) => match position {
            Position::Line(line) => prop_assert!(line <= 1 + bytes.iter().filter(|&&byte| byte == b'\n').count() as u64),
            Position::Byte(byte) => prop_assert!(byte <= bytes.len() as u64),
        },
        Err(_) => {}
    }
    Ok(())
}

const WORDS: [&str; 56] = [
    "\n",
    "\n",
    "\n",
    " ",
    " ",
    "0",
    "7",
    "4096",
    "ffff",
    "0x1f",
    "18446744073709551615",
    "r ",
    "w ",
    "s ",
    "l ",
    "I  ",
    " L ",
    " M ",
    ",",
    ",8",
    "*",
    "#",
    "==1== x",
    "+++ exited with 0 +++",
    "--- SIGCHLD {} ---",
    "12 ",
    "[pid 12] ",
    "[pid ",
    "1.5 ",
    "12:00:01 ",
    "openat(AT_FDCWD, \"/a\\\"b\", O_RDWR|O_APPEND) = 3",
    "open(\"x\", O_RDONLY) = 3</y>",
    "read(3, \"\"..., 4096) = 4096",
    "read(3</q>, \"\", 1) = 1",
    "write(3, \"\", 5) = 5",
    "pread64(3, \"\", 9, 18446744073709551615) = 9",
    "lseek(3, 5, SEEK_SET) = 5",
    "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f0000000000",
    "close(3) = 0",
    "dup2(3, 4) = 4",
    "vfork( <unfinished ...>",
    "<... vfork resumed>) = 13",
    "clone(flags=CLONE_FILES|CLONE_FS) = 13",
    "read(3,  <unfinished ...>",
    "<... read resumed>\"\", 3) = 3",
    "<... ",
    " resumed>",
    "strace: Process 13 attached",
    "execve(\"/x\", [\"x\"], 0x7 /* 2 vars */) = 0",
    "= -1 ENOENT (No)",
    "= ?",
    "fstat(3, {st_size=100, ...}) = 0",
    "copy_file_range(3, NULL, 4, [5] => [9], 4, 0) = 4",
    "close_range(3, 9, 0) = 0",
    "\\",
    "\"",
];
