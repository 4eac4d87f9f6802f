//! The meaning of the figures, in sentences that a person can act on. Pure.

use super::figures::{SelftestRow, TokenComparison};

/// Ratios within this of 1 count as equal: no person notices less, and a busy machine adds more.
pub(super) const EVEN: f64 = 0.05;
/// Tokens per cycle below which hardly any proposal was right. Pairs that were trained for each
/// other give 2 and more on their worst kind of text.
const NEARLY_NOTHING: f64 = 1.15;

/// Largest ratio of plain speeds, most over least, on a machine that does nothing else.
const STEADY: f64 = 2.0;

/// The figures that the verdict depends on.
pub struct Findings<'a> {
    /// A row for each kind.
    pub kinds: &'a [SelftestRow],
    /// All together.
    pub all: &'a SelftestRow,
    /// Whether the lanes gave the same tokens.
    pub identity: &'a TokenComparison,
    /// Whether there was a drafter.
    pub drafter: bool,
}

/// One or two sentences a line. The last line is the advice.
pub fn verdict(found: &Findings) -> Vec<String> {
    if !found.drafter {
        return without_drafter(found.all);
    }
    if let Some(place) = found.identity.judged.differences.first() {
        return vec![
            format!(
                "The lanes gave different tokens, and rounding does not explain it (first in {}): this is a bug, not a setting.",
                place.kind
            ),
            "Until it is understood set routing.force = \"plain\", and please report it with the output of \
             `paceline selftest --json`."
                .into(),
        ];
    }
    let mut lines = vec![speed(found.all)];
    let per_cycle = found.all.tokens_per_cycle.unwrap_or(1.0);
    if per_cycle < NEARLY_NOTHING {
        lines.push(format!(
            "The drafter looks mismatched: of what it proposed nearly nothing was accepted ({per_cycle:.2} tokens per cycle, 1 is \
             nothing). It was made for another model, or for another version of this one."
        ));
        lines.push("Set drafter.model to one that was made for this model, or drafter.start = \"manual\" to go without.".into());
        return lines;
    }
    let kinds = KindSpeeds::of(found);
    lines.extend(kinds.lines());
    if let Some((least, most)) =
        found.all.plain_range.filter(|(least, most)| *most > STEADY * least)
    {
        lines.push(format!(
            "The machine was busy meanwhile: the plain lane alone ranged from {least:.0} to {most:.0} tokens per second. Run it again \
             when nothing else runs before you act on speeds."
        ));
    }
    lines.push(kinds.advice(found.all, per_cycle));
    lines
}

fn without_drafter(all: &SelftestRow) -> Vec<String> {
    let speed = all
        .plain_tok_s
        .map(|speed| format!(" It decodes at {speed:.0} tokens per second."))
        .unwrap_or_default();
    vec![
        format!("No drafter is configured: there is nothing to compare.{speed}"),
        "To have one, set drafter.model to a drafter made for this model, or try one with --drafter DIR.".into(),
    ]
}

/// Kinds of prompts, each with its speed with the drafter over that without.
struct KindSpeeds<'a> {
    gains: Vec<(&'a SelftestRow, f64)>,
    losses: Vec<(&'a SelftestRow, f64)>,
    even: Vec<(&'a SelftestRow, f64)>,
}

impl<'a> KindSpeeds<'a> {
    fn of(found: &Findings<'a>) -> Self {
        let of = |which: &dyn Fn(f64) -> bool| {
            let rows =
                found.kinds.iter().filter_map(|row| row.ratio.map(|ratio| (row, ratio.median)));
            rows.filter(|(_, ratio)| which(*ratio)).collect::<Vec<_>>()
        };
        Self {
            gains: of(&|ratio| ratio >= 1.0 + EVEN),
            losses: of(&|ratio| ratio <= 1.0 - EVEN),
            even: of(&|ratio| ratio > 1.0 - EVEN && ratio < 1.0 + EVEN),
        }
    }

    fn lines(&self) -> Vec<String> {
        let groups = [("Faster", &self.gains), ("Slower", &self.losses), ("As fast", &self.even)];
        let line = |(word, rows): (&str, &Vec<(&SelftestRow, f64)>)| {
            let named: Vec<_> =
                rows.iter().map(|(row, ratio)| format!("{} ({ratio:.2})", row.kind)).collect();
            (!named.is_empty()).then(|| format!("{word} with the drafter: {}.", named.join(", ")))
        };
        groups.into_iter().filter_map(line).collect()
    }

    fn advice(&self, all: &SelftestRow, per_cycle: f64) -> String {
        let names = |rows: &[(&SelftestRow, f64)]| {
            rows.iter().map(|(row, _)| row.kind.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (gains, losses) = (names(&self.gains), names(&self.losses));
        match (self.gains.is_empty(), self.losses.is_empty()) {
            (false, true) => "Leave the drafter on.".into(),
            (false, false) if all.overall().is_some_and(|ratio| ratio < 1.0 + EVEN) => format!(
                "Over all kinds it gains nothing. Leave it on if your work is like {gains}; for work like {losses} ask with --route \
                 plain, or set routing.force = \"plain\"."
            ),
            (false, false) => format!(
                "Leave the drafter on. For work like {losses} ask with --route plain; if most of yours is such work, set \
                 routing.force = \"plain\"."
            ),
            (true, false) => format!(
                "The drafter does not pay on this machine: set routing.force = \"plain\", or drafter.start = \"manual\" to save its \
                 memory too.{}",
                // Enough is accepted; the drafts cost more than they save.
                if per_cycle >= 2.0 {
                    " Its guesses are good and cost too much: a smaller one, or drafter.quantize, may pay."
                } else {
                    ""
                }
            ),
            (true, true) => "It makes no difference one would notice. drafter.start = \"manual\" saves the drafter's memory.".into(),
        }
    }
}

fn speed(all: &SelftestRow) -> String {
    match all.overall() {
        Some(ratio) => format!(
            "The same answers took {:.1} s to decode without and {:.1} s with the drafter: {ratio:.2} times as fast.",
            all.plain_s, all.drafted_s
        ),
        None => "The answers were too short to time.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Spread;
    use super::*;
    use paceline_client::compare::{Difference, DifferencePlace, JudgedDifferences};

    fn row(kind: &str, ratio: f64) -> SelftestRow {
        let ratio = Some(Spread { median: ratio, min: ratio, max: ratio });
        SelftestRow {
            kind: kind.into(),
            ratio,
            plain_s: 10.0,
            drafted_s: 4.0,
            tokens_per_cycle: Some(5.0),
            ..SelftestRow::default()
        }
    }

    /// Verdict on kinds with these ratios, at `per_cycle` tokens per cycle.
    fn lines(ratios: &[(&str, f64)], per_cycle: f64) -> Vec<String> {
        lines_of(ratios, SelftestRow { tokens_per_cycle: Some(per_cycle), ..row("all", 1.0) })
    }

    fn lines_of(ratios: &[(&str, f64)], all: SelftestRow) -> Vec<String> {
        let kinds: Vec<_> = ratios.iter().map(|(kind, ratio)| row(kind, *ratio)).collect();
        verdict(&Findings {
            kinds: &kinds,
            all: &all,
            identity: &TokenComparison::default(),
            drafter: true,
        })
    }

    fn check(ratios: &[(&str, f64)], per_cycle: f64, expected: &str) {
        let last = lines(ratios, per_cycle).pop().expect("a line");
        assert!(last.contains(expected), "{ratios:?} {per_cycle}: {last}");
    }

    #[test]
    fn every_outcome_has_its_advice() {
        check(&[("json", 3.0), ("prose", 1.01)], 5.0, "Leave the drafter on.");
        check(
            &[("json", 3.0), ("prose", 0.8), ("facts", 0.7)],
            5.0,
            "For work like prose, facts ask with --route plain",
        );
        check(&[("json", 0.9), ("prose", 0.8)], 5.0, "cost too much");
        check(&[("json", 0.9), ("prose", 0.8)], 1.5, "save its memory too.");
        check(&[("json", 1.0), ("prose", 1.04)], 2.0, "no difference one would notice");
        check(&[("json", 0.7)], 1.02, "made for this model");
    }

    #[test]
    fn a_mixture_without_gain_gets_no_recommendation() {
        let last = lines_of(
            &[("json", 3.0), ("prose", 0.5)],
            SelftestRow { drafted_s: 10.0, ..row("all", 1.0) },
        )
        .pop()
        .expect("a line");
        assert!(last.contains("if your work is like json; for work like prose"), "{last}");
    }

    #[test]
    fn a_busy_machine_is_reported() {
        let told = |least| {
            let all = SelftestRow { plain_range: Some((least, 200.0)), ..row("all", 1.0) };
            lines_of(&[("json", 3.0)], all).iter().any(|line| line.contains("from 50 to 200"))
        };
        assert!(told(50.0) && !told(150.0));
    }

    #[test]
    fn kinds_are_sorted_by_what_they_gain() {
        assert_eq!(
            lines(&[("json", 3.0), ("table", 1.05), ("facts", 1.0), ("prose", 0.95)], 5.0)[..4],
            [
                "The same answers took 10.0 s to decode without and 4.0 s with the drafter: 2.50 times as fast.",
                "Faster with the drafter: json (3.00), table (1.05).",
                "Slower with the drafter: prose (0.95).",
                "As fast with the drafter: facts (1.00).",
            ]
        );
    }

    #[test]
    fn a_token_difference_outranks_any_speed() {
        let difference =
            Difference { position: 3, plain_id: Some(1), other_id: Some(2), margin: Some(0.5) };
        let place =
            DifferencePlace { kind: "code".into(), prompt: 0, choice: "greedy", difference };
        let judged = JudgedDifferences { differences: vec![place], ..Default::default() };
        let identity = TokenComparison { judged, ..TokenComparison::default() };
        let kinds = [row("code", 3.0)];
        let lines = verdict(&Findings {
            kinds: &kinds,
            all: &kinds[0],
            identity: &identity,
            drafter: true,
        });
        assert!(lines[0].contains("this is a bug") && lines[0].contains("code"), "{lines:?}");
        assert!(lines[1].contains("routing.force = \"plain\""), "{lines:?}");
    }

    #[test]
    fn without_a_drafter_it_says_how_to_get_one() {
        let all = SelftestRow { plain_tok_s: Some(99.6), ..SelftestRow::default() };
        let lines = verdict(&Findings {
            kinds: &[],
            all: &all,
            identity: &TokenComparison::default(),
            drafter: false,
        });
        assert!(
            lines[0].contains("nothing to compare") && lines[0].contains("100 tokens per second"),
            "{lines:?}"
        );
        assert!(lines[1].contains("--drafter"), "{lines:?}");
    }
}
