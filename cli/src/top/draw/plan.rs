//! Which parts of the page a terminal of some size shows, and in how many rows.

use crate::top::view::Figures;

/// Columns below which requests and speculation stand below each other.
const WIDE: u16 = 72;
/// Rows of a process table: its title, its head, four processes.
pub(super) const PROCESS_ROWS: u16 = 6;
/// Rows of the throughput, if there is room: its title and a graph of five.
const THROUGHPUT_ROWS: u16 = 6;
/// Rows of the events before the other parts grow.
const EVENT_ROWS: u16 = 5;

/// A part of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Processes, and reasons.
    Processes,
    /// Requests beside speculation.
    RequestsAndSpeculation,
    /// Requests alone.
    Requests,
    /// Speculation alone.
    Speculation,
    /// KV and memory.
    Memory,
    /// Throughput.
    Throughput,
    /// Events.
    Events,
}

/// A part with its rows, the title included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedPart {
    /// The part.
    pub part: Part,
    /// Its rows.
    pub rows: u16,
    most: u16,
}

/// The parts that fit into `height` rows, from top to bottom. The parts at the end are left out
/// first. `reasons` is the number of lines that the reasons take.
pub fn plan(width: u16, height: u16, figures: &Figures, reasons: usize) -> Vec<PlannedPart> {
    let lines = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).saturating_add(1);
    let requests = lines(figures.lanes.len().max(1) + 2);
    let speculation = lines(figures.speculation.len() + 1);
    let part = |part, rows, most: u16| PlannedPart { part, rows, most: most.max(rows) };
    let mut wanted =
        vec![part(Part::Processes, PROCESS_ROWS, PROCESS_ROWS.saturating_add(lines(reasons) - 1))];
    if width >= WIDE {
        wanted.push(part(Part::RequestsAndSpeculation, 5, requests.max(speculation)));
    } else {
        wanted.push(part(Part::Requests, 3, requests));
        wanted.push(part(Part::Speculation, 3, speculation));
    }
    wanted.push(part(Part::Memory, 3, 3));
    wanted.push(part(Part::Throughput, 3, THROUGHPUT_ROWS));
    wanted.push(part(Part::Events, 3, u16::MAX));
    let mut free = height;
    let mut planned: Vec<PlannedPart> = Vec::new();
    for part in wanted {
        if part.rows > free {
            break;
        }
        free -= part.rows;
        planned.push(part);
    }
    // The first part grows first. Then the events get some rows, at the end all that are left.
    grow(&mut planned, &mut free, |part| part.part == Part::Processes, u16::MAX);
    grow(&mut planned, &mut free, |part| part.part == Part::Events, EVENT_ROWS);
    grow(&mut planned, &mut free, |_| true, u16::MAX);
    planned
}

/// Gives free rows to the parts that are `chosen`, up to `most` for each.
fn grow(
    planned: &mut [PlannedPart],
    free: &mut u16,
    chosen: impl Fn(&PlannedPart) -> bool,
    most: u16,
) {
    for part in planned.iter_mut().filter(|part| chosen(part)) {
        let more = part.most.min(most).saturating_sub(part.rows).min(*free);
        part.rows += more;
        *free -= more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_never_exceed_the_height_and_the_processes_come_first() {
        let mut figures = Figures::default();
        figures.lanes.resize(7, Default::default());
        figures.speculation.resize(4, String::new());
        for (width, reasons) in [(40, 0), (100, 3), (100, 40)] {
            for height in 0..80 {
                let planned = plan(width, height, &figures, reasons);
                let rows: u16 = planned.iter().map(|part| part.rows).sum();
                assert!(rows <= height, "{width}x{height}: {planned:?}");
                assert_eq!(planned.is_empty(), height < PROCESS_ROWS, "{height}");
                assert!(planned.first().is_none_or(|first| first.part == Part::Processes));
                let has_events = planned.iter().any(|part| part.part == Part::Events);
                assert!(!has_events || rows == height, "{width}x{height}: {planned:?}");
            }
        }
    }
}
