//! `overspill advise`: says in plain words which policy and how much memory suit a recorded program, with the figures.
//!
//! There are two ways to count. A string that has nothing but references is replayed page by page, and policies are compared by
//! their page-ins in proportion to opt's. A trace that our own pager recorded (with kinds of faults) has only the references that
//! the pager sees. It is replayed through the live core, from the least memory that `overspill run` takes. opt cannot run there, so
//! policies are compared by first touches and hard faults with the best of them at each size.

use crate::args::lab::{AdviseArgs, See};
use crate::cost::CostModel;
use crate::sim::{self, Asked, LiveJob};
use crate::sizes::spread;
use crate::{Failure, printable, trace};
use overspill_lab::{FAULTS_MEMORY_MIN, Job, LabPolicy};
use overspill_linux::setup;
use overspill_linux::size::human;
use overspill_trace::{Kind, Trace};
use std::fmt::Write as _;
use std::path::Path;

/// The number of sizes.
const SIZES: u32 = 12;
/// The smallest size: this share of the unique pages.
const SMALLEST: f64 = 0.005;
/// A step that saves less than this share of the page-ins that memory can save makes no knee.
const STEP_MIN: f64 = 0.05;
/// Policies nearer to each other than this, in page-ins, are equal for practical purposes, and so are sizes.
const EQUAL: f64 = 0.01;

/// Runs the command; exit status 0.
pub fn advise(args: &AdviseArgs) -> Result<u8, Failure> {
    let asked = match args.policy.is_empty() {
        true => sim::policies(&["all".to_owned()])?,
        false => sim::policies(&args.policy)?,
    };
    let candidates: Vec<Asked> = asked.into_iter().filter(|asked| asked.policy != LabPolicy::Opt).collect();
    if candidates.is_empty() {
        return Err(Failure::new("--policy opt: opt knows the future and cannot be run; name one that can, or leave --policy out"));
    }
    for (index, file) in args.trace.iter().enumerate() {
        let trace = trace::load(file, &args.options, None)?;
        let advice = match trace.kinds {
            None => Advice::by_references(file, &trace, &candidates, &args.cost_model)?,
            Some(_) => Advice::by_faults(file, &trace, &candidates, &args.cost_model)?,
        };
        let gap = if index == 0 { "" } else { "\n" };
        if !crate::print(&format!("{gap}{}", advice.text(file, &trace)))? {
            break;
        }
    }
    Ok(0)
}

/// The counts of a policy at one size of memory.
#[derive(Clone, Copy)]
struct Point {
    /// Page-ins; with the live core, first touches and hard faults.
    faults: u64,
    /// First references, or first touches, among them.
    first: u64,
    /// Touches of inactive pages, counted or estimated.
    soft: u64,
    /// The predicted run time.
    seconds: f64,
}

/// A policy at all sizes.
struct Candidate {
    name: String,
    points: Vec<Point>,
    /// Faults above those of the measure, in proportion, on average over the sizes.
    over: f64,
}

struct Advice {
    /// Whether the live core counted.
    live: bool,
    sizes: Vec<u32>,
    /// The best first.
    candidates: Vec<Candidate>,
    /// The faults that policies are compared with at each size: opt's, or the fewest of any policy.
    measure: Vec<u64>,
    knees: Vec<usize>,
    /// The index of the advised size.
    elbow: usize,
}

impl Advice {
    /// By a replay in which policies hear of every reference.
    fn by_references(file: &Path, trace: &Trace, asked: &[Asked], model: &CostModel) -> Result<Advice, Failure> {
        let string = sim::references(file, &trace.pages, trace.unique(), &trace.writes, trace.is_of_files())?;
        let sizes = sizes(smallest(trace), trace.unique());
        let policies: Vec<LabPolicy> = asked.iter().map(|asked| asked.policy).chain([LabPolicy::Opt]).collect();
        let jobs: Vec<Job> = policies.iter().flat_map(|&policy| sizes.iter().map(move |&memory| Job { policy, memory })).collect();
        let outcomes = sim::replay(&string, &jobs, &format!("replaying {}", file.display()));
        let lru = sim::lru_at_every_size(&string, file);
        let point = |(job, counts): (&Job, &overspill_lab::Counts)| {
            let soft = model.soft_faults(&lru, job.memory);
            Point { faults: counts.faults, first: counts.cold_faults, soft, seconds: model.seconds(counts, soft) }
        };
        let points: Vec<Point> = jobs.iter().zip(outcomes.iter().map(|outcome| &outcome.counts)).map(point).collect();
        let (points, opt) = points.split_at(asked.len() * sizes.len());
        Ok(Advice::new(false, sizes, asked, points, opt.iter().map(|point| point.faults).collect()))
    }

    /// By a replay on the live core, which hears of faults only.
    fn by_faults(file: &Path, trace: &Trace, asked: &[Asked], model: &CostModel) -> Result<Advice, Failure> {
        let low = smallest(trace).max(FAULTS_MEMORY_MIN);
        // Room for everything, for the pager's buffers, and for the frames that its daemon keeps free.
        let pages = trace.unique().saturating_add(trace.unique() / 8);
        let sizes = sizes(low, pages.saturating_add(setup::buffers_usual(pages)).max(low));
        let mut jobs = Vec::new();
        for asked in asked {
            let LabPolicy::Live(policy) = asked.policy else { unreachable!("opt is no candidate") };
            jobs.extend(sizes.iter().map(|&memory| LiveJob { policy, memory }));
        }
        let counted = sim::replay_live(file, trace, See::Faults, true, &jobs)?;
        let points: Vec<Point> = counted
            .iter()
            .map(|(live, _)| Point {
                faults: live.counts.faults,
                first: live.counts.cold_faults,
                soft: live.soft_faults,
                seconds: model.seconds_live(live),
            })
            .collect();
        let fewest = |size| points.iter().skip(size).step_by(sizes.len()).map(|point: &Point| point.faults).min().unwrap_or(0);
        let measure = (0..sizes.len()).map(fewest).collect();
        Ok(Advice::new(true, sizes, asked, &points, measure))
    }

    /// From `points`, policy by policy, each with all sizes.
    fn new(live: bool, sizes: Vec<u32>, asked: &[Asked], points: &[Point], measure: Vec<u64>) -> Advice {
        let mut candidates: Vec<Candidate> = asked
            .iter()
            .zip(points.chunks(sizes.len()))
            .map(|(asked, points)| {
                let ratios = points.iter().zip(&measure).map(|(point, measure)| point.faults as f64 / *measure as f64);
                Candidate {
                    name: asked.given.clone(),
                    over: ratios.sum::<f64>() / sizes.len() as f64 - 1.0,
                    points: points.to_vec(),
                }
            })
            .collect();
        candidates.sort_by(|a, b| a.over.total_cmp(&b.over));
        let faults: Vec<u64> = candidates[0].points.iter().map(|point| point.faults).collect();
        let (knees, elbow) = (knees(&faults), elbow(&faults));
        Advice { live, sizes, candidates, measure, knees, elbow }
    }

    fn text(&self, file: &Path, trace: &Trace) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, file, trace);
        text
    }

    fn write(&self, text: &mut String, file: &Path, trace: &Trace) -> std::fmt::Result {
        let size = |pages: u32| format!("{} ({pages} pages)", human(u64::from(pages) * u64::from(trace.page_bytes())));
        let name = printable(&file.display().to_string());
        writeln!(text, "{name}: {} references to {} in all", trace.references_total, size(trace.unique()))?;
        if let Some(kinds) = &trace.kinds {
            let count = |kind| kinds.iter().filter(|&&other| other == kind).count();
            writeln!(
                text,
                "  Recorded by the pager: {} first touches, {} soft faults, {} hard faults. Replayed as `sim --see faults` does.",
                count(Kind::FirstTouch),
                count(Kind::SoftFault),
                count(Kind::HardFault)
            )?;
        }
        self.write_policy(text)?;
        self.write_memory(text, &size)?;
        self.write_table(text, trace)
    }

    fn write_policy(&self, text: &mut String) -> std::fmt::Result {
        let best = &self.candidates[0];
        writeln!(text, "\nPolicy: {}", best.name)?;
        let (low, high) = (self.sizes[0], self.sizes[self.sizes.len() - 1]);
        let (count, over) = (self.sizes.len(), percent(best.over));
        if !self.live {
            writeln!(
                text,
                "  On average over {count} sizes from {low} to {high} pages, it reads {over} more pages than is possible at all (opt)."
            )?;
        } else if self.candidates.len() > 1 {
            writeln!(
                text,
                "  On average over {count} sizes from {low} to {high} pages, it has {over} more faults than the best policy of each size."
            )?;
        }
        for other in self.candidates.iter().skip(1).take(2).chain(self.candidates.iter().skip(3).last()) {
            writeln!(text, "  {:<18} {} more", other.name, percent(other.over))?;
        }
        let near = self.candidates.iter().skip(1).filter(|other| other.over - best.over < EQUAL).count();
        if near > 0 && near + 1 == self.candidates.len() {
            writeln!(text, "  The policy hardly matters here: all are within {} of each other.", percent(EQUAL))?;
        } else if near > 0 {
            writeln!(text, "  {near} more within {} of it would do as well.", percent(EQUAL))?;
        }
        Ok(())
    }

    fn write_memory(&self, text: &mut String, size: &dyn Fn(u32) -> String) -> std::fmt::Result {
        let points = &self.candidates[0].points;
        let here = points[self.elbow];
        let what = if self.live { "faults" } else { "page-ins" };
        writeln!(text, "\nMemory: {}", size(self.sizes[self.elbow]))?;
        if self.live {
            let hard = here.faults - here.first;
            writeln!(
                text,
                "  There it has {hard} hard faults and {} soft ones, besides {} first touches: a predicted {:.2} s of paging.",
                here.soft, here.first, here.seconds
            )?;
        } else {
            writeln!(
                text,
                "  There {} pages are read, {} of them for the first time: a predicted {:.2} s of paging.",
                here.faults, here.first, here.seconds
            )?;
        }
        if let Some(less) = self.elbow.checked_sub(1) {
            writeln!(
                text,
                "  One step less, {}, costs {} {what} more (+{}), {:.2} s.",
                size(self.sizes[less]),
                points[less].faults.saturating_sub(here.faults),
                percent(points[less].faults as f64 / here.faults as f64 - 1.0),
                points[less].seconds - here.seconds
            )?;
        } else if self.live && self.sizes[0] == FAULTS_MEMORY_MIN {
            writeln!(text, "  That is the least that `overspill run` takes.")?;
        }
        if self.elbow + 1 < self.sizes.len() {
            let more = self.elbow + 1;
            writeln!(
                text,
                "  One step more, {}, saves {} {what} ({}), {:.2} s.",
                size(self.sizes[more]),
                here.faults.saturating_sub(points[more].faults),
                percent(1.0 - points[more].faults as f64 / here.faults as f64),
                here.seconds - points[more].seconds
            )?;
        } else if here.faults == here.first {
            writeln!(text, "  Everything fits there: more memory saves nothing.")?;
        }
        let (first, last) = (points[0].faults, points[points.len() - 1].faults);
        if !self.knees.is_empty() {
            let list: Vec<String> = self.knees.iter().map(|&index| size(self.sizes[index])).collect();
            writeln!(text, "  Knees of the curve: {}.", list.join(", "))
        } else if saves_nothing(first, last) {
            writeln!(text, "  The curve has no knee: all sizes are within {} of each other.", percent(EQUAL))
        } else {
            writeln!(text, "  The curve has no knee: no step of memory stands out from those beside it.")
        }
    }

    fn write_table(&self, text: &mut String, trace: &Trace) -> std::fmt::Result {
        match self.live {
            false => writeln!(
                text,
                "\n  {:>10} {:>10} {:>12} {:>7} {:>12} {:>11}",
                "memory", "pages", "page-ins", "misses", "opt", "seconds"
            )?,
            true => writeln!(
                text,
                "\n  {:>10} {:>10} {:>12} {:>13} {:>12} {:>11}",
                "memory", "pages", "hard faults", "first touches", "soft faults", "seconds"
            )?,
        }
        for (index, (&pages, point)) in self.sizes.iter().zip(&self.candidates[0].points).enumerate() {
            let mark = if index == self.elbow {
                "<- advised"
            } else if self.knees.contains(&index) {
                "<- knee"
            } else {
                ""
            };
            let memory = human(u64::from(pages) * u64::from(trace.page_bytes()));
            let line = if self.live {
                let hard = point.faults - point.first;
                format!(
                    "  {memory:>10} {pages:>10} {hard:>12} {:>13} {:>12} {:>11.2} {mark}",
                    point.first, point.soft, point.seconds
                )
            } else {
                let misses = percent(point.faults as f64 / trace.references_total as f64);
                let opt = self.measure[index];
                format!("  {memory:>10} {pages:>10} {:>12} {misses:>7} {opt:>12} {:>11.2} {mark}", point.faults, point.seconds)
            };
            writeln!(text, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// The smallest size of memory, in pages.
fn smallest(trace: &Trace) -> u32 {
    ((f64::from(trace.unique()) * SMALLEST) as u32).max(1)
}

/// The sizes, rising, each once.
fn sizes(low: u32, high: u32) -> Vec<u32> {
    let mut sizes = spread(low, high, SIZES);
    sizes.dedup();
    sizes
}

/// Whether even the largest memory saves hardly any of the faults of the smallest.
fn saves_nothing(first: u64, last: u64) -> bool {
    first.saturating_sub(last) as f64 <= EQUAL * first as f64
}

/// The knees: sizes whose step saved at least twice as much as the step after it. The last size has no step after it. It is a knee
/// if its step saved at least twice as much as steps do on average, as where a loop fits at last.
fn knees(faults: &[u64]) -> Vec<usize> {
    let (first, least) = (faults[0], faults.iter().min().copied().unwrap_or(0));
    if saves_nothing(first, least) {
        return Vec::new();
    }
    let all = (first - least) as f64;
    let steps = faults.len().saturating_sub(1);
    let gain = |index: usize| faults[index - 1].saturating_sub(faults[index]) as f64;
    let usual = |index: usize| if index == steps { all / steps as f64 } else { gain(index + 1) };
    let knee = |&index: &usize| gain(index) > 0.0 && gain(index) >= STEP_MIN * all && gain(index) >= 2.0 * usual(index);
    (1..faults.len()).filter(knee).collect()
}

/// The size whose point lies furthest below the straight line from the first point of the curve to the last (Satopaa, Albrecht,
/// Irwin and Raghavan, "Finding a Kneedle in a Haystack", 2011). Sizes are evenly spaced, on their logarithmic scale.
///
/// This method finds nothing in a curve that bends the other way. The curve of a loop does so under any policy: little is saved
/// until the whole loop fits. So if no point lies below the line, the last size is taken, or the first if there is nothing to save.
/// If at least two thirds of the possible savings lie beyond the point, the rest of the curve is searched in the same way.
fn elbow(faults: &[u64]) -> usize {
    let (first, end) = (faults[0], faults.len() - 1);
    let last = faults[end];
    if saves_nothing(first, last) {
        return 0;
    }
    let mut from = 0;
    while let Some(at) = furthest_below(&faults[from..]).map(|index| from + index) {
        if faults[at].saturating_sub(last) < 2 * first.saturating_sub(faults[at]) {
            return at;
        }
        from = at;
    }
    end
}

/// The index of the point furthest below the line from the first to the last; the first of equals. `None` if no point is below it.
fn furthest_below(faults: &[u64]) -> Option<usize> {
    let (first, last) = (faults[0] as f64, faults[faults.len() - 1] as f64);
    let steps = (faults.len() - 1).max(1) as f64;
    let below = |index: usize| first + (last - first) * index as f64 / steps - faults[index] as f64;
    // A difference due to rounding does not count.
    let least = 1e-9 * first;
    let best = (0..faults.len()).reduce(|best, other| if below(other) > below(best) { other } else { best })?;
    (below(best) > least).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knees_and_elbows() {
        // A working set that fits from the fourth size on.
        let cliff = [100, 99, 98, 10, 10, 10, 9];
        assert_eq!((knees(&cliff), elbow(&cliff)), (vec![3], 3));
        // Two working sets: the line from 100 to 9 is 21.8 above the second size, 17.2 above the fifth.
        let two = [100, 60, 58, 57, 10, 9];
        assert_eq!((knees(&two), elbow(&two)), (vec![1, 4], 1));
        // Nothing to choose.
        assert_eq!((knees(&[5, 5, 5]), elbow(&[5, 5, 5])), (vec![], 0));
        assert_eq!((knees(&[5]), elbow(&[5])), (vec![], 0));
        // A straight line has no knee, and no reason to stop before its end.
        assert_eq!((knees(&[50, 40, 30, 20, 10]), elbow(&[50, 40, 30, 20, 10])), (vec![], 4));
    }

    /// Under lru a loop always misses until it fits. Under a policy that keeps a part of the loop, the curve falls faster and
    /// faster on the logarithmic scale. Both curves lie above the line, and 5 pages of 1011 were advised.
    #[test]
    fn a_loop_has_its_knee_at_its_end() {
        let lru = [1000, 1000, 1000, 1000, 1000, 10];
        assert_eq!((knees(&lru), elbow(&lru)), (vec![5], 5));
        let part = [970, 940, 880, 760, 520, 10];
        assert_eq!((knees(&part), elbow(&part)), (vec![5], 5));
        // A small working set first: most is still saved at the loop's end.
        let both = [1000, 900, 900, 900, 900, 900, 10];
        assert_eq!((knees(&both), elbow(&both)), (vec![1, 6], 6));
        // The cliff before the last, and a slope before it that bends the other way.
        let early = [1000, 995, 985, 960, 900, 50, 10];
        assert_eq!((knees(&early), elbow(&early)), (vec![5], 5));
        // Less than one in a hundred can be saved.
        assert_eq!((knees(&[1000, 1000, 1000, 995]), elbow(&[1000, 1000, 1000, 995])), (vec![], 0));
    }
}
