//! The page on a grid of cells. Nothing here knows the terminal, so that tests and `--once` draw
//! the same page.

mod parts;
mod plan;
mod text;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::view::{Footer, Tone, View};
use parts::Canvas;
use text::{columns, fit, wrap};

/// Smallest terminal with figures.
const LEAST: (u16, u16) = (40, 10);
/// Share of the rows that the text at the bottom may take.
const FOOTER_PART: u16 = 3;
/// Most lines of one reason, and of all. `paceline status` has the whole reasons.
const REASON_LINES: (usize, usize) = (2, 6);

/// Draws the page.
pub fn draw(view: &View, area: Rect, buffer: &mut Buffer) {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (width, height) = LEAST;
        let text = format!(
            "expected a terminal of {width} columns and {height} rows, found {} and {}; q quits",
            area.width, area.height
        );
        return lines(&wrap(&text, area.width.into()), Style::default(), area, buffer);
    }
    let (top, rest) = cut(area, 1);
    head(view, top, buffer);
    let rest = notice(view, rest, buffer);
    let rest = footer(&view.footer, rest, buffer);
    body(view, rest, buffer);
}

/// The page as text, without styles and without spaces at the ends of lines.
pub fn page_text(view: &View, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(view, area, &mut buffer);
    let mut page = String::new();
    for y in 0..height {
        let (mut line, mut x) = (String::new(), 0);
        while x < width {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // The cell beside a wide character is empty.
            x += u16::try_from(columns(symbol)).unwrap_or(1).max(1);
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

/// The style of a tone.
fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::default(),
        Tone::Good => Style::default().fg(Color::Green),
        Tone::Warning => Style::default().fg(Color::Yellow),
        Tone::Bad => Style::default().fg(Color::Red),
    }
}

/// The first rows of an area, and the others.
fn cut(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    let first = Rect { height: rows, ..area };
    (first, Rect { y: area.y + rows, height: area.height - rows, ..area })
}

fn lines(lines: &[String], style: Style, area: Rect, buffer: &mut Buffer) {
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        buffer.set_stringn(area.x, y, line, area.width.into(), style);
    }
}

fn head(view: &View, area: Rect, buffer: &mut Buffer) {
    let name = Span::styled("paceline top", Style::default().add_modifier(Modifier::BOLD));
    let model = match view.model.as_str() {
        "" => String::new(),
        model => format!("  {}", fit(model, usize::from(area.width).saturating_sub(14))),
    };
    buffer.set_line(area.x, area.y, &Line::from(vec![name, Span::raw(model)]), area.width);
}

/// Draws the notice, and returns the area below it.
fn notice(view: &View, area: Rect, buffer: &mut Buffer) -> Rect {
    let Some((tone, text)) = &view.notice else { return area };
    let shown = shortened(
        wrap(text, area.width.into()),
        usize::from(area.height / FOOTER_PART).max(1),
        false,
    );
    let (top, rest) = cut(area, shown.len() as u16);
    lines(&shown, style(*tone), top, buffer);
    rest
}

/// Draws the lines at the bottom, and returns the area above them.
fn footer(footer: &Footer, area: Rect, buffer: &mut Buffer) -> Rect {
    // A question is shown whole, if half of the page is enough. Other texts leave the processes.
    let most = match footer.is_question {
        true => area.height / 2,
        false => {
            (area.height / FOOTER_PART).min(area.height.saturating_sub(plan::PROCESS_ROWS + 1))
        }
    };
    let most = usize::from(most).max(1);
    let text = match footer.text.as_str() {
        "" => vec![],
        text => shortened(wrap(text, area.width.into()), most, footer.is_typed),
    };
    let rows = text.len() as u16 + 1;
    let (above, bottom) = cut(area, area.height.saturating_sub(rows));
    let (top, keys) = cut(bottom, bottom.height.saturating_sub(1));
    lines(&text, style(footer.tone), top, buffer);
    let dim = Style::default().add_modifier(Modifier::REVERSED);
    let keys_text = text::padded(&format!(" {}", footer.keys), area.width.into());
    lines(&[keys_text], dim, keys, buffer);
    above
}

/// The first `most` of these lines, or the last ones of a text that is typed.
fn shortened(mut lines: Vec<String>, most: usize, keep_end: bool) -> Vec<String> {
    let more = lines.len().saturating_sub(most);
    if more == 0 {
        return lines;
    }
    if keep_end {
        lines.drain(..more);
        return lines;
    }
    lines.truncate(most);
    if let Some(last) = lines.last_mut() {
        // One column less, so that the mark has a place on a full line.
        let width = columns(last).saturating_sub(1);
        *last = format!("{}…", fit(last.trim_end(), width).trim_end_matches('…'));
    }
    lines
}

fn body(view: &View, area: Rect, buffer: &mut Buffer) {
    let Some(figures) = &view.figures else {
        return Canvas { area, buffer }.events(&view.events);
    };
    let reasons: Vec<String> = figures
        .reasons
        .iter()
        .flat_map(|reason| shortened(wrap(reason, area.width.into()), REASON_LINES.0, false))
        .take(REASON_LINES.1)
        .collect();
    let mut rest = area;
    for planned in plan::plan(area.width, area.height, figures, reasons.len()) {
        let (area, below) = cut(rest, planned.rows);
        rest = below;
        let mut canvas = Canvas { area, buffer };
        match planned.part {
            plan::Part::Processes => canvas.processes(&figures.processes, &reasons),
            plan::Part::RequestsAndSpeculation => {
                let left = area.width / 2;
                canvas.area.width = left - 2;
                canvas.requests(figures);
                canvas.area = Rect { x: area.x + left, width: area.width - left, ..area };
                canvas.speculation(figures);
            }
            plan::Part::Requests => canvas.requests(figures),
            plan::Part::Speculation => canvas.speculation(figures),
            plan::Part::Memory => canvas.memory(&figures.gauges),
            plan::Part::Throughput => canvas.throughput(figures),
            plan::Part::Events => canvas.events(&view.events),
        }
    }
}

#[cfg(test)]
mod tests;
