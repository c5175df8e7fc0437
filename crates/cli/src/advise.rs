//! `overspill advise`: which policy and how much memory a recorded program wants, in plain words, with the figures behind them.

use crate::args::lab::AdviseArgs;
use crate::cost::CostModel;
use crate::sim::{self, Asked};
use crate::sizes::spread;
use crate::{Failure, trace};
use overspill_lab::{Counts, Curve, Job, LabPolicy};
use overspill_linux::size::human;
use overspill_trace::Trace;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

/// Sizes that are looked at.
const SIZES: u32 = 12;
/// The smallest of them: this share of the unique pages.
const SMALLEST: f64 = 0.005;
/// A step that brings less than this share of the page-ins that memory can save makes no knee.
const STEP_MIN: f64 = 0.05;
/// Policies nearer to each other than this, in page-ins, are equal for practical purposes.
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
        let advice = Advice::find(file, &trace, &candidates)?;
        let gap = if index == 0 { "" } else { "\n" };
        if write!(io::stdout(), "{gap}{}", advice.text(file, &trace, &args.cost_model)).is_err() {
            break; // a closed pipe is the reader's business
        }
    }
    Ok(0)
}

/// A policy's page-ins at all sizes.
struct Candidate {
    name: String,
    counts: Vec<Counts>,
    /// Faults in proportion to opt's, on average over the sizes.
    over_opt: f64,
}

struct Advice {
    sizes: Vec<u32>,
    /// The best first.
    candidates: Vec<Candidate>,
    opt: Vec<Counts>,
    lru: Curve,
    knees: Vec<usize>,
    /// Index of the size advised.
    elbow: usize,
}

impl Advice {
    fn find(file: &Path, trace: &Trace, asked: &[Asked]) -> Result<Advice, Failure> {
        let string = sim::references(file, &trace.pages, trace.unique(), &trace.writes, trace.is_of_files())?;
        let mut sizes = spread(((f64::from(trace.unique()) * SMALLEST) as u32).max(1), trace.unique(), SIZES);
        sizes.dedup();
        let policies: Vec<LabPolicy> = asked.iter().map(|asked| asked.policy).chain([LabPolicy::Opt]).collect();
        let jobs: Vec<Job> = policies.iter().flat_map(|&policy| sizes.iter().map(move |&memory| Job { policy, memory })).collect();
        let outcomes = sim::replay(&string, &jobs, &format!("replaying {}", file.display()));
        let mut counts: Vec<Vec<Counts>> =
            outcomes.chunks(sizes.len()).map(|chunk| chunk.iter().map(|outcome| outcome.counts).collect()).collect();
        let opt = counts.pop().expect("opt was added last");
        let mut candidates: Vec<Candidate> = asked
            .iter()
            .zip(counts)
            .map(|(asked, counts)| {
                let ratios = counts.iter().zip(&opt).map(|(counts, opt)| counts.faults as f64 / opt.faults as f64);
                Candidate { name: asked.given.clone(), over_opt: ratios.sum::<f64>() / sizes.len() as f64 - 1.0, counts }
            })
            .collect();
        candidates.sort_by(|a, b| a.over_opt.total_cmp(&b.over_opt));
        let faults: Vec<u64> = candidates[0].counts.iter().map(|counts| counts.faults).collect();
        let (knees, elbow) = (knees(&faults), elbow(&faults));
        Ok(Advice { sizes, candidates, opt, lru: sim::lru_at_every_size(&string, file), knees, elbow })
    }

    fn text(&self, file: &Path, trace: &Trace, model: &CostModel) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text, file, trace, model);
        text
    }

    fn write(&self, text: &mut String, file: &Path, trace: &Trace, model: &CostModel) -> std::fmt::Result {
        let size = |pages: u32| format!("{} ({pages} pages)", human(u64::from(pages) * u64::from(trace.page_bytes)));
        let best = &self.candidates[0];
        let first = best.counts[0];
        writeln!(text, "{}: {} references to {} in all", file.display(), first.references, size(trace.unique()))?;

        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let (low, high) = (self.sizes[0], self.sizes[self.sizes.len() - 1]);
        writeln!(text, "\nPolicy: {}", best.name)?;
        writeln!(
            text,
            "  On average over {} sizes from {low} to {high} pages, it reads {} more pages than is possible at all (opt).",
            self.sizes.len(),
            percent(best.over_opt)
        )?;
        for other in self.candidates.iter().skip(1).take(2).chain(self.candidates.iter().skip(3).last()) {
            writeln!(text, "  {:<18} {} more", other.name, percent(other.over_opt))?;
        }
        let near = self.candidates.iter().skip(1).filter(|other| other.over_opt - best.over_opt < EQUAL).count();
        if near > 0 && near + 1 == self.candidates.len() {
            writeln!(text, "  The policy hardly matters here: all are within {} of each other.", percent(EQUAL))?;
        } else if near > 0 {
            writeln!(text, "  {near} more within {} of it would do as well.", percent(EQUAL))?;
        }

        let at = |index: usize| best.counts[index].faults;
        let seconds = |index: usize| model.seconds(&best.counts[index], model.soft_faults(&self.lru, self.sizes[index]));
        writeln!(text, "\nMemory: {}", size(self.sizes[self.elbow]))?;
        writeln!(
            text,
            "  There {} pages are read, {} of them for the first time: a predicted {:.2} s of paging.",
            at(self.elbow),
            first.cold_faults,
            seconds(self.elbow)
        )?;
        if let Some(less) = self.elbow.checked_sub(1) {
            writeln!(
                text,
                "  One step less, {}, costs {} page-ins more (+{}), {:.2} s.",
                size(self.sizes[less]),
                at(less).saturating_sub(at(self.elbow)),
                percent(at(less) as f64 / at(self.elbow) as f64 - 1.0),
                seconds(less) - seconds(self.elbow)
            )?;
        }
        if self.elbow + 1 < self.sizes.len() {
            let more = self.elbow + 1;
            writeln!(
                text,
                "  One step more, {}, saves {} page-ins ({}), {:.2} s.",
                size(self.sizes[more]),
                at(self.elbow).saturating_sub(at(more)),
                percent(1.0 - at(more) as f64 / at(self.elbow) as f64),
                seconds(self.elbow) - seconds(more)
            )?;
        }
        if self.knees.is_empty() {
            writeln!(text, "  The curve has no knee: every step of memory is worth about the same, or nothing.")?;
        } else {
            let list: Vec<String> = self.knees.iter().map(|&index| size(self.sizes[index])).collect();
            writeln!(text, "  Knees of the curve: {}.", list.join(", "))?;
        }

        writeln!(text, "\n  {:>10} {:>10} {:>12} {:>7} {:>12} {:>11}", "memory", "pages", "page-ins", "misses", "opt", "seconds")?;
        for (index, (&pages, opt)) in self.sizes.iter().zip(&self.opt).enumerate() {
            let mark = if index == self.elbow {
                "<- advised"
            } else if self.knees.contains(&index) {
                "<- knee"
            } else {
                ""
            };
            let memory = human(u64::from(pages) * u64::from(trace.page_bytes));
            let misses = percent(at(index) as f64 / first.references as f64);
            let line = format!(
                "  {memory:>10} {pages:>10} {:>12} {misses:>7} {:>12} {:>11.2} {mark}",
                at(index),
                opt.faults,
                seconds(index)
            );
            writeln!(text, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Sizes before which a step brought at least twice as much as the one after brings.
fn knees(faults: &[u64]) -> Vec<usize> {
    let least = faults.iter().min().copied().unwrap_or(0);
    let all = faults.first().map_or(0, |first| first.saturating_sub(least));
    let gain = |index: usize| faults[index - 1].saturating_sub(faults[index]);
    let knee =
        |&index: &usize| gain(index) as f64 >= STEP_MIN * all as f64 && gain(index) > 0 && gain(index) >= 2 * gain(index + 1);
    (1..faults.len().saturating_sub(1)).filter(knee).collect()
}

/// The size whose point lies furthest below the straight line from the first point of the curve to the last (Satopaa, Albrecht,
/// Irwin and Raghavan, "Finding a Kneedle in a Haystack", 2011). Sizes are evenly spaced, on their logarithmic scale.
fn elbow(faults: &[u64]) -> usize {
    let (first, last) = (faults[0] as f64, faults[faults.len() - 1] as f64);
    let steps = (faults.len() - 1).max(1) as f64;
    let below = |index: usize| first + (last - first) * index as f64 / steps - faults[index] as f64;
    // Of equals the smallest memory.
    (0..faults.len()).reduce(|best, other| if below(other) > below(best) { other } else { best }).unwrap_or(0)
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
        // A straight line has no knee.
        assert!(knees(&[50, 40, 30, 20, 10]).is_empty());
    }
}
