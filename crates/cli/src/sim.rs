//! `overspill sim`: reference strings replayed under policies and sizes.

use crate::args::lab::{Output, See, SimArgs, Switch};
use crate::cost::CostModel;
use crate::plot::{self, Panel, Series};
use crate::progress::Meter;
use crate::{Failure, printable, say, trace};
use overspill_lab::{
    Counts, Curve, FAULTS_MEMORY_MIN, Job, LabPolicy, Layout, Live, LiveCounts, Outcome, References, in_parallel,
    lru_curve_with_progress, matrix, replay_faults_with_progress,
};
use overspill_linux::setup;
use overspill_linux::size::human;
use overspill_trace::{Bits, Trace};
use overspill_vm::policy::{NAMES, Spec, SpecError};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

/// A policy and the SPEC that asked for it.
pub struct Asked {
    pub given: String,
    pub policy: LabPolicy,
}

/// The policies of `--policy`: SPECs, or `all`.
pub fn policies(specs: &[String]) -> Result<Vec<Asked>, Failure> {
    let mut asked: Vec<Asked> = Vec::new();
    for spec in specs {
        if spec == "all" {
            asked.extend(LabPolicy::all().map(|policy| Asked { given: policy.to_string(), policy }));
        } else {
            let policy = spec.parse::<LabPolicy>().map_err(|error| {
                Failure::new(match error {
                    // the lab has one more policy, and a word for all of them
                    SpecError::Policy(name) => {
                        let (names, opt) = (NAMES.join(", "), LabPolicy::OPT);
                        format!("--policy {spec}: there is no replacement policy {name:?}, only {names}, {opt}, or all")
                    }
                    error => format!("--policy {spec}: {error}"),
                })
            })?;
            asked.push(Asked { given: spec.clone(), policy });
        }
    }
    // The same SPEC given twice counts once.
    let mut seen = std::collections::HashSet::new();
    asked.retain(|asked| seen.insert(asked.given.clone()));
    Ok(asked)
}

/// One line of the results.
pub struct Row {
    pub policy: String,
    /// Pages.
    pub memory: u32,
    pub counts: Counts,
    /// With `--see faults`.
    pub live: Option<LiveCounts>,
    pub seconds: f64,
    /// The margin of the faults, if they are an estimate.
    pub margin: Option<u64>,
    /// The faults that compressed memory serves, if there is some.
    pub pool_hits: Option<u64>,
    pub predicted_seconds: Option<f64>,
}

impl Row {
    pub fn miss_ratio(&self) -> f64 {
        self.counts.faults as f64 / self.counts.references as f64
    }
}

/// The references of a trace, or of a part of one, for a replay.
pub fn references<'a>(
    name: &Path,
    pages: &'a [u32],
    unique: u32,
    writes: &'a Bits,
    of_files: bool,
) -> Result<References<'a>, Failure> {
    if pages.len() >= u32::MAX as usize {
        let message =
            format!("trace {}: more than {} references; take a sample of its pages (--sample 0.1)", name.display(), u32::MAX);
        return Err(Failure::with_status(1, message));
    }
    Ok(References::new(pages, unique, Some(writes.words())).of_files(of_files))
}

/// Runs the command; exit status 0.
pub fn sim(args: &SimArgs) -> Result<u8, Failure> {
    let mut asked = policies(&args.policy)?;
    if args.see != See::All {
        let before = asked.len();
        asked.retain(|asked| asked.policy != LabPolicy::Opt || args.policy.contains(&asked.given));
        if asked.len() < before {
            say(format_args!("--see faults: opt is left out of all, since it knows the future and cannot run live"));
        }
    }
    if let Some(file) = &args.plot {
        // report a mistake before the work
        let directory = file.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            let why = format!("--plot {} cannot be written: there is no directory {}", file.display(), directory.display());
            return Err(Failure::with_status(1, why));
        }
    }
    let mut printed = Ok(true);
    let mut panels = Vec::new();
    for (index, file) in args.trace.iter().enumerate() {
        let trace = trace::load(file, &args.options, args.sample)?;
        let rows = match args.see {
            See::All => run(args, file, &trace, &asked)?,
            See::Faults | See::References => run_faults(args, file, &trace, &asked)?,
        };
        let text = match args.format {
            Output::Json => json(file, &rows, args.sample),
            Output::Csv => csv(file, &rows, index == 0, args.sample),
            Output::Table => table(file, &trace, &rows, args.sample),
        };
        if matches!(printed, Ok(true)) {
            printed = crate::print(&text); // if it cannot, the picture is still drawn
        }
        if args.plot.is_some() {
            panels.push(panel(file, &trace, &rows));
        }
    }
    if let Some(file) = &args.plot {
        let kind = plot::Kind::of_name(file).expect("checked when the arguments were read");
        let drawn = plot::draw(&panels, kind).map_err(|_| io::Error::other("the picture would be too large"));
        drawn
            .and_then(|bytes| std::fs::write(file, bytes))
            .map_err(|error| Failure::with_status(1, format!("--plot {} cannot be written: {error}", file.display())))?;
    }
    printed.map(|_| 0)
}

fn run(args: &SimArgs, file: &Path, trace: &Trace, asked: &[Asked]) -> Result<Vec<Row>, Failure> {
    let rate = args.sample.unwrap_or(1.0);
    let unique = (f64::from(trace.unique()) / rate).round() as u64;
    let sizes = args.memory.pages(unique, trace.page_bytes()).map_err(Failure::new)?;
    let jobs: Vec<(&Asked, u32)> = asked.iter().flat_map(|asked| sizes.iter().map(move |&memory| (asked, memory))).collect();
    let string = references(file, &trace.pages, trace.unique(), &trace.writes, trace.is_of_files())?;
    let scaled = |share: f64| -> Vec<Job> {
        let memory = |memory: u32| ((f64::from(memory) * share).round() as u32).max(1);
        jobs.iter().map(|&(asked, size)| Job { policy: asked.policy, memory: memory(size) }).collect()
    };
    let what = format!("replaying {}", file.display());
    let outcomes = replay(&string, &scaled(args.compressed.map_or(rate, |tier| 1.0 - tier.share)), &what);
    // What memory and compressed memory hold together are the pages that a memory of that size would hold.
    let both = args.compressed.map(|tier| replay(&string, &scaled(1.0 + tier.share * (tier.ratio - 1.0)), &what));
    let hits = |at: usize, faults: u64| both.as_ref().map(|both| faults.saturating_sub(both[at].counts.faults));
    let pool_hits: Vec<_> = outcomes.iter().enumerate().map(|(at, outcome)| hits(at, outcome.counts.faults)).collect();
    let margins = match args.sample {
        None => vec![None; jobs.len()],
        Some(rate) => {
            sampling_margins(file, trace, rate, &sizes, &outcomes, scaled(rate / f64::from(PARTS)))?.into_iter().map(Some).collect()
        }
    };
    let lru = args.cost_model.map(|_| lru_at_every_size(&string, file));
    let rows = jobs.iter().zip(outcomes).zip(margins.into_iter().zip(pool_hits)).map(
        |((&(asked, memory), outcome), (margin, pool_hits))| {
            let counts = scale_up(&outcome.counts, trace.references_total, rate);
            let predicted = |model: &CostModel| {
                let scaled = ((f64::from(memory) * rate).round() as u32).max(1);
                let soft = lru.as_ref().map_or(0, |lru| model.soft_faults(lru, scaled));
                model.seconds(&counts, (soft as f64 / rate) as u64)
            };
            let predicted_seconds = args.cost_model.as_ref().map(predicted);
            Row {
                policy: asked.given.clone(),
                memory,
                counts,
                live: None,
                seconds: outcome.time.as_secs_f64(),
                margin,
                pool_hits,
                predicted_seconds,
            }
        },
    );
    Ok(rows.collect())
}

/// A job of [`replay_live`].
pub struct LiveJob {
    pub policy: Spec,
    /// Pages.
    pub memory: u32,
}

/// Runs all jobs on the live core, on all processors, with progress. Returns the counts and the seconds of each.
pub fn replay_live(
    file: &Path,
    trace: &Trace,
    see: See,
    readahead: bool,
    jobs: &[LiveJob],
) -> Result<Vec<(LiveCounts, f64)>, Failure> {
    let string = references(file, &trace.pages, trace.unique(), &trace.writes, trace.is_of_files())?;
    let layout = Layout::new(&trace.numbers);
    let progress = progress(format!("replaying {}", file.display()), work(&string, jobs.len()));
    Ok(in_parallel(jobs, processors(), progress, |job, done| {
        let start = Instant::now();
        let live =
            Live { memory: job.memory, charged: setup::buffers_usual(job.memory), readahead, references: see == See::References };
        (replay_faults_with_progress(&job.policy, &string, &layout, &live, done), start.elapsed().as_secs_f64())
    }))
}

/// `--see faults` and `--see references`: on the live core.
fn run_faults(args: &SimArgs, file: &Path, trace: &Trace, asked: &[Asked]) -> Result<Vec<Row>, Failure> {
    if args.compressed.is_some() {
        return Err(Failure::new("--see faults knows no compressed memory; leave --compressed out, or take --see all"));
    }
    if args.sample.is_some() {
        return Err(Failure::new("--see faults cannot be sampled, since the core works on whole memories; leave --sample out"));
    }
    let sizes = args.memory.pages(trace.unique().into(), trace.page_bytes()).map_err(Failure::new)?;
    if let Some(small) = sizes.iter().find(|&&size| size < FAULTS_MEMORY_MIN) {
        return Err(Failure::new(format!(
            "--see faults: a memory of {small} pages is too small for the live pager; take at least {FAULTS_MEMORY_MIN} pages, or --see all"
        )));
    }
    let (mut names, mut jobs) = (Vec::new(), Vec::new());
    for asked in asked {
        let LabPolicy::Live(spec) = asked.policy else {
            return Err(Failure::new("--see faults: opt knows the future and cannot run live; leave it out, or take --see all"));
        };
        names.extend(sizes.iter().map(|_| &asked.given));
        jobs.extend(sizes.iter().map(|&memory| LiveJob { policy: spec, memory }));
    }
    let counted = replay_live(file, trace, args.see, args.readahead == Switch::On, &jobs)?;
    let rows = names.iter().zip(&jobs).zip(counted).map(|((name, job), (live, seconds))| Row {
        policy: (*name).clone(),
        memory: job.memory,
        counts: live.counts,
        live: Some(live),
        seconds,
        margin: None,
        pool_hits: None,
        predicted_seconds: args.cost_model.as_ref().map(|model| model.seconds_live(&live)),
    });
    Ok(rows.collect())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs all jobs on all processors, with progress.
pub fn replay(string: &References<'_>, jobs: &[Job], what: &str) -> Vec<Outcome> {
    matrix(string, jobs, processors(), progress(what, work(string, jobs.len())))
}

/// LRU at every size, with progress.
pub fn lru_at_every_size(string: &References<'_>, file: &Path) -> Curve {
    let progress = progress(format!("LRU at every size, {}", file.display()), work(string, 1));
    let done = Cell::new(0);
    lru_curve_with_progress(string, &|references| {
        done.set(done.get() + references);
        progress(done.get());
    })
}

/// The references of `jobs` replays.
fn work(string: &References<'_>, jobs: usize) -> u64 {
    string.pages().len() as u64 * jobs as u64
}

/// A function by which any thread reports how much of `total` it has done.
fn progress(what: impl Into<String>, total: u64) -> impl Fn(u64) + Sync {
    let meter = Mutex::new(Meter::new(what));
    move |done| {
        if let Ok(mut meter) = meter.lock() {
            meter.show(done, total);
        }
    }
}

/// The counts of a sample of pages, divided by its rate.
fn scale_up(counts: &Counts, references_total: u64, rate: f64) -> Counts {
    if rate == 1.0 {
        return *counts;
    }
    // The number of references is known exactly, so a fault is one of them (the adjustment of SHARDS, section 5.2 of the paper).
    let up = |count: u64| ((count as f64 / rate).round() as u64).min(references_total);
    Counts {
        references: references_total,
        unique_pages: up(counts.unique_pages),
        faults: up(counts.faults),
        cold_faults: up(counts.cold_faults),
        pages_written: up(counts.pages_written),
    }
}

/// The number of parts of a sample, whose differences give the margin.
const PARTS: u32 = 10;
/// Student's t for 9 degrees of freedom, 95 %.
const T_95: f64 = 2.262;
/// The smallest memory of a part, in pages. A smaller one tells nothing about a large memory.
const PART_PAGES_MIN: f64 = 8.0;

/// The 95 % margins of the faults that are estimated from `outcomes` (of the whole sample).
///
/// The sample is split by page into ten parts. Each is a sample of a tenth of the rate, and their estimates differ as those of
/// different samples do. The spread of the estimates gives the error of their mean; the error of the whole sample is no greater.
/// The distance between that mean and the estimate of the whole sample, which the ten times smaller memories cause, is added.
fn sampling_margins(
    file: &Path,
    trace: &Trace,
    rate: f64,
    sizes: &[u32],
    outcomes: &[Outcome],
    jobs: Vec<Job>,
) -> Result<Vec<u64>, Failure> {
    let smallest = f64::from(*sizes.first().expect("there is a size")) * rate / f64::from(PARTS);
    if smallest < PART_PAGES_MIN {
        let needed = f64::from(sizes[0]) / smallest * PART_PAGES_MIN;
        let message = format!(
            "--sample {rate}: a memory of {} pages is too small for it; take larger memories (from {needed:.0} pages) or a larger share",
            sizes[0]
        );
        return Err(Failure::new(message));
    }
    if trace.unique() < PARTS * PART_PAGES_MIN as u32 {
        let message = format!(
            "--sample {rate}: {} of the pages are in the sample, which are too few to tell anything; take a larger share",
            trace.unique()
        );
        return Err(Failure::new(message));
    }
    let mut estimates = vec![Vec::new(); jobs.len()];
    for (n, part) in trace.split(PARTS).iter().enumerate() {
        let string = references(file, &part.pages, part.unique, &part.writes, trace.is_of_files())?;
        let parts = replay(&string, &jobs, &format!("replaying part {} of {PARTS} of the sample", n + 1));
        for (estimates, outcome) in estimates.iter_mut().zip(parts) {
            estimates.push(outcome.counts.faults as f64 * f64::from(PARTS) / rate);
        }
    }
    let margin = |(estimates, outcome): (&Vec<f64>, &Outcome)| {
        let n = f64::from(PARTS);
        let mean = estimates.iter().sum::<f64>() / n;
        let variance = estimates.iter().map(|estimate| (estimate - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let bias = (mean - outcome.counts.faults as f64 / rate).abs();
        (T_95 * (variance / n).sqrt() + bias).ceil() as u64
    };
    Ok(estimates.iter().zip(outcomes).map(margin).collect())
}

fn json(file: &Path, rows: &[Row], sample: Option<f64>) -> String {
    let line = |row: &Row| {
        let mut json = serde_json::json!({
            "trace": file.display().to_string(),
            "policy": row.policy,
            "memory_pages": row.memory,
            "references": row.counts.references,
            "unique_pages": row.counts.unique_pages,
            "faults": row.counts.faults,
            "cold_faults": row.counts.cold_faults,
            "pages_written": row.counts.pages_written,
            "seconds": row.seconds,
        });
        if let Some(live) = &row.live {
            json["soft_faults"] = live.soft_faults.into();
            json["pages_parked"] = live.pages_parked.into();
            json["pages_watched"] = live.pages_watched.into();
            json["references_seen"] = live.references_seen.into();
            json["pages_in"] = live.pages_in.into();
            json["page_in_ops"] = live.page_in_ops.into();
        }
        if let Some(hits) = row.pool_hits {
            json["pool_hits"] = hits.into();
        }
        if let Some(seconds) = row.predicted_seconds {
            json["predicted_seconds"] = seconds.into();
        }
        if let (Some(margin), Some(rate)) = (row.margin, sample) {
            json["sample"] = rate.into();
            json["faults_margin_95"] = margin.into();
        }
        format!("{json}\n")
    };
    rows.iter().map(line).collect()
}

/// A field of CSV, in quotes where it needs them (RFC 4180).
fn quote(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn csv(file: &Path, rows: &[Row], with_names: bool, sample: Option<f64>) -> String {
    let mut text = String::new();
    if with_names {
        let names = "trace,policy,memory_pages,references,unique_pages,faults,cold_faults,pages_written,seconds";
        text.push_str(names);
        text.push_str(if rows[0].live.is_some() {
            ",soft_faults,pages_parked,pages_watched,references_seen,pages_in,page_in_ops"
        } else {
            ""
        });
        text.push_str(if rows[0].pool_hits.is_some() { ",pool_hits" } else { "" });
        text.push_str(if rows[0].predicted_seconds.is_some() { ",predicted_seconds" } else { "" });
        text.push_str(if rows[0].margin.is_some() { ",sample,faults_margin_95" } else { "" });
        text.push('\n');
    }
    for row in rows {
        let counts = &row.counts;
        let mut fields = vec![quote(&file.display().to_string()), quote(&row.policy)];
        fields.extend([u64::from(row.memory), counts.references, counts.unique_pages].map(|number| number.to_string()));
        fields.extend([counts.faults, counts.cold_faults, counts.pages_written].map(|number| number.to_string()));
        fields.push(format!("{:.6}", row.seconds));
        if let Some(live) = &row.live {
            let more =
                [live.soft_faults, live.pages_parked, live.pages_watched, live.references_seen, live.pages_in, live.page_in_ops];
            fields.extend(more.map(|number| number.to_string()));
        }
        fields.extend(row.pool_hits.map(|hits| hits.to_string()));
        fields.extend(row.predicted_seconds.map(|seconds| format!("{seconds:.6}")));
        if let (Some(margin), Some(rate)) = (row.margin, sample) {
            fields.extend([rate.to_string(), margin.to_string()]);
        }
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// With more sizes than this, the table has sizes down and policies across.
const COLUMNS_MAX: usize = 7;

fn table(file: &Path, trace: &Trace, rows: &[Row], sample: Option<f64>) -> String {
    let counts = &rows[0].counts;
    let (references, unique, cold) = (counts.references, counts.unique_pages, counts.cold_faults);
    let first = if rows[0].live.is_some() { "first touches" } else { "first references" };
    let mut text = format!(
        "{}: {references} references to {unique} pages of {} ({cold} faults are {first})\n",
        printable(&file.display().to_string()),
        human(u64::from(trace.page_bytes()))
    );
    let faults = |row: &Row| {
        let margin = row.margin.map_or(String::new(), |margin| format!(" +-{margin}"));
        format!("{}{margin} {:5.2}%", row.counts.faults, row.miss_ratio() * 100.0)
    };
    text.push_str(match sample {
        None => "faults and miss ratio, by memory in pages\n",
        Some(_) => "faults, estimated with a margin of 95 % confidence, and miss ratio, by memory in pages\n",
    });
    text.push_str(&grid(rows, faults));
    if rows[0].live.is_some() {
        text.push_str("soft faults\n");
        text.push_str(&grid(rows, |row| row.live.map_or(String::new(), |live| live.soft_faults.to_string())));
    }
    if rows[0].pool_hits.is_some() {
        text.push_str("of the faults, served from compressed memory\n");
        text.push_str(&grid(rows, |row| row.pool_hits.map_or(String::new(), |hits| hits.to_string())));
    }
    if rows.iter().any(|row| row.counts.pages_written > 0) {
        text.push_str("pages written\n");
        text.push_str(&grid(rows, |row| row.counts.pages_written.to_string()));
    }
    if rows[0].predicted_seconds.is_some() {
        text.push_str("predicted run time in seconds\n");
        text.push_str(&grid(rows, |row| row.predicted_seconds.map_or(String::new(), |seconds| format!("{seconds:.3}"))));
    }
    text.push('\n');
    text
}

/// A table with policies down and sizes across, or the other way round if there are many sizes and fewer policies.
fn grid(rows: &[Row], cell: impl Fn(&Row) -> String) -> String {
    let mut policies: Vec<&str> = Vec::new();
    let mut sizes: Vec<u32> = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
        if !sizes.contains(&row.memory) {
            sizes.push(row.memory);
        }
    }
    // Rows come policy by policy, each with all sizes.
    let at = |policy: usize, size: usize| cell(&rows[policy * sizes.len() + size]);
    let size_names: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let policy_names: Vec<String> = policies.iter().map(|&name| name.to_owned()).collect();
    if sizes.len() > COLUMNS_MAX && policies.len() < sizes.len() {
        aligned("memory", &policy_names, &size_names, |row, column| at(column, row))
    } else {
        aligned("policy", &size_names, &policy_names, at)
    }
}

fn aligned(corner: &str, across: &[String], down: &[String], cell: impl Fn(usize, usize) -> String) -> String {
    let lines: Vec<Vec<String>> =
        std::iter::once([&[corner.to_owned()][..], across].concat())
            .chain(down.iter().enumerate().map(|(row, name)| {
                std::iter::once(name.clone()).chain((0..across.len()).map(|column| cell(row, column))).collect()
            }))
            .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=across.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, (word, width)) in line.iter().zip(&widths).enumerate() {
            // Names to the left, numbers to the right.
            text.push_str(&if column == 0 { format!("  {word:<width$}") } else { format!("  {word:>width$}") });
        }
        text.push('\n');
    }
    text
}

fn panel(file: &Path, trace: &Trace, rows: &[Row]) -> Panel {
    let mut series: Vec<Series> = Vec::new();
    for row in rows {
        let point = (f64::from(row.memory), row.miss_ratio());
        match series.iter_mut().find(|series| series.name == row.policy) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name: row.policy.clone(), points: vec![point] }),
        }
    }
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let counts = &rows[0].counts;
    Panel {
        title: format!("{name}: {} references to {} pages", counts.references, counts.unique_pages),
        page: human(u64::from(trace.page_bytes())),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A carriage return in a file's name ended the line for programs that read CSV.
    #[test]
    fn fields_of_csv() {
        assert_eq!(["a b", "a,b", "a\"b", "a\nb", "a\rb"].map(quote), ["a b", "\"a,b\"", "\"a\"\"b\"", "\"a\nb\"", "\"a\rb\""]);
    }
}
