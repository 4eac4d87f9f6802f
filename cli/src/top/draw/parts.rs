//! The parts of the page.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline, Widget as _};

use super::style;
use super::text::{columns, fit, fit_end, padded};
use crate::top::view::{EventRow, Figures, Gauge, LaneRow, ProcessRow};

/// Title, width, and the text of a row.
type Column = (&'static str, usize, fn(&ProcessRow) -> &str);

/// Columns of a process table after its name and state, with the width of each. The first ones stay
/// longest on a narrow terminal.
const COLUMNS: [Column; 4] = [
    ("PID", 8, |row| &row.pid),
    ("UP", 11, |row| &row.uptime),
    ("RESTARTS", 9, |row| &row.restarts),
    ("EPOCH", 6, |row| &row.epoch),
];
const NAME_COLUMNS: usize = 12;
const STATE_COLUMNS: usize = 14;
/// Least columns of a model's name.
const MODEL_COLUMNS: usize = 12;
/// Columns of a terminal from which on a gauge has more columns, and the columns of a gauge.
const BARS: [(usize, usize); 3] = [(110, 24), (72, 10), (0, 8)];
/// Levels of a graph of one row.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// An area of the page.
pub(super) struct Canvas<'a> {
    pub(super) area: Rect,
    pub(super) buffer: &'a mut Buffer,
}

impl Canvas<'_> {
    fn width(&self) -> usize {
        self.area.width.into()
    }

    /// Draws the title on the first row.
    fn title(&mut self, title: &str) {
        let title = fit(title, self.width().saturating_sub(3));
        let rule = "─".repeat(self.width().saturating_sub(columns(&title) + 3));
        let dim = Style::default().add_modifier(Modifier::DIM);
        let bold = Style::default().add_modifier(Modifier::BOLD);
        let line = Line::from(vec![
            Span::styled("─ ", dim),
            Span::styled(title, bold),
            Span::styled(format!(" {rule}"), dim),
        ]);
        self.line(0, line);
    }

    /// Draws a line on a row of the area, if the area has that row.
    fn line<'line>(&mut self, row: usize, line: impl Into<Line<'line>>) {
        if let Ok(row) = u16::try_from(row)
            && row < self.area.height
        {
            self.buffer.set_line(self.area.x, self.area.y + row, &line.into(), self.area.width);
        }
    }

    /// Draws a text, cut to the width.
    fn text(&mut self, row: usize, text: &str) {
        let text = fit(text, self.width());
        self.line(row, text);
    }

    fn dim(&mut self, row: usize, text: &str) {
        let text = fit(text, self.width());
        self.line(row, Span::styled(text, Style::default().add_modifier(Modifier::DIM)));
    }

    pub(super) fn processes(&mut self, rows: &[ProcessRow], reasons: &[String]) {
        self.title("processes");
        let mut free = self.width().saturating_sub(NAME_COLUMNS + STATE_COLUMNS);
        let mut shown = Vec::new();
        for column in COLUMNS {
            if column.1 > free {
                break;
            }
            free -= column.1;
            shown.push(column);
        }
        let has_model = free >= MODEL_COLUMNS;
        let mut head = padded("PROCESS", NAME_COLUMNS) + &padded("STATE", STATE_COLUMNS);
        head.extend(shown.iter().map(|(name, width, _)| padded(name, *width)));
        head.push_str(if has_model { "MODEL" } else { "" });
        self.dim(1, &head);
        for (row, process) in rows.iter().enumerate() {
            let mut rest = String::new();
            rest.extend(
                shown.iter().map(|(_, width, cell)| padded(cell(process), width - 1) + " "),
            );
            if has_model {
                rest.push_str(&fit_end(&process.model, free));
            }
            let state = padded(&process.state, STATE_COLUMNS - 1) + " ";
            let cells = vec![
                Span::raw(padded(process.name, NAME_COLUMNS)),
                Span::styled(state, style(process.tone)),
                Span::raw(rest),
            ];
            self.line(2 + row, Line::from(cells));
        }
        for (row, reason) in reasons.iter().enumerate() {
            let reason =
                Span::styled(fit(reason, self.width()), Style::default().fg(Color::Yellow));
            self.line(2 + rows.len() + row, reason);
        }
    }

    pub(super) fn requests(&mut self, figures: &Figures) {
        self.title("requests");
        self.text(1, &figures.requests);
        if figures.lanes.is_empty() {
            return self.dim(2, "none has ended yet");
        }
        self.dim(2, &lane("ENDED", "MINUTE", "LANE", "REASON"));
        for (row, LaneRow { ended, last_minute, lane: name, reason }) in
            figures.lanes.iter().enumerate()
        {
            self.text(3 + row, &lane(&ended.to_string(), &last_minute.to_string(), name, reason));
        }
    }

    pub(super) fn speculation(&mut self, figures: &Figures) {
        self.title("speculation");
        for (row, text) in figures.speculation.iter().enumerate() {
            self.text(1 + row, text);
        }
        if figures.acceptance.iter().any(Option::is_some) {
            let label = "last minute ";
            let room = self.width().saturating_sub(columns(label));
            let graph = acceptance(&figures.acceptance, room);
            self.text(1 + figures.speculation.len(), &format!("{label}{graph}"));
        }
    }

    pub(super) fn memory(&mut self, gauges: &[Gauge]) {
        self.title("memory");
        let width = self.width();
        let bar = BARS.iter().find(|(from, _)| width >= *from).map_or(0, |(_, bar)| *bar);
        for (row, gauge) in gauges.iter().enumerate() {
            let cells = |share: f64| (share.clamp(0.0, 1.0) * bar as f64).round() as usize;
            let held = cells(gauge.held).min(bar);
            let evictable = cells(gauge.evictable).min(bar - held);
            let text = fit(&gauge.text, width.saturating_sub(8 + bar));
            let line = Line::from(vec![
                Span::raw(padded(gauge.name, 7)),
                Span::styled("█".repeat(held), style(gauge.tone)),
                Span::styled("▒".repeat(evictable), Style::default().fg(Color::Blue)),
                Span::styled(
                    "░".repeat(bar - held - evictable),
                    Style::default().add_modifier(Modifier::DIM),
                ),
                Span::raw(format!(" {text}")),
            ]);
            self.line(1 + row, line);
        }
    }

    pub(super) fn throughput(&mut self, figures: &Figures) {
        self.title(&figures.throughput_title);
        let area = self.area;
        let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        // The graph has whole numbers; a hundredth of a token per second is exact enough.
        let hundredths = |rate: f64| (rate * 100.0).round() as u64;
        let rates = figures.throughput.tokens_per_s.iter().rev().take(self.width());
        let data: Vec<u64> = rates.map(|rate| hundredths(*rate)).collect();
        let most = hundredths(figures.throughput.peak()).max(1);
        Sparkline::default()
            .data(data)
            .max(most)
            .direction(RenderDirection::RightToLeft)
            .style(Style::default().fg(Color::Cyan))
            .render(area, self.buffer);
    }

    pub(super) fn events(&mut self, events: &[EventRow]) {
        if self.area.height == 0 {
            return;
        }
        self.title("events (UTC)");
        for (row, EventRow { time, text }) in
            events.iter().enumerate().take(self.area.height.into())
        {
            self.text(1 + row, &format!("{time}  {text}"));
        }
    }
}

fn lane(ended: &str, last_minute: &str, lane: &str, reason: &str) -> String {
    format!("{ended:>7} {last_minute:>7}  {} {reason}", padded(lane, 12))
}

/// A column for each share, the newest at the end: its height is the share, a space means that
/// nothing was drafted.
fn acceptance(shares: &[Option<f64>], most: usize) -> String {
    let level = |share: &Option<f64>| match share {
        None => ' ',
        Some(share) => {
            let level = (share.clamp(0.0, 1.0) * (LEVELS.len() - 1) as f64).round() as usize;
            LEVELS[level.min(LEVELS.len() - 1)]
        }
    };
    shares[shares.len().saturating_sub(most)..].iter().map(level).collect()
}
