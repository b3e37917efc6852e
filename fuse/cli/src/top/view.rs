//! Draws the screen: the mounts above, and the details of the selected mount below.

use super::model::{Model, Row, Sample, clock, megabytes};
use crate::stats::text::time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};
use std::time::{Instant, SystemTime};

/// The details that are shown of the selected mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Detail {
    #[default]
    Minute,
    Procedures,
    Users,
    Connections,
}

/// The state that keys change.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) detail: Detail,
    /// The index of the selected row.
    pub(super) selected: usize,
}

/// The lower part is left out if it would have fewer lines.
const DETAIL_MIN: u16 = 4;

/// The width of the label before a sparkline.
const LABEL: u16 = 33;

const HELP: &str = "q quit  up/down mount  p procedures  u users  c connections  s sparklines";
const SHORT_HELP: &str = "q quit  up/down  p procs  u users  c conns";

impl View {
    pub(super) fn draw(
        &mut self,
        frame: &mut Frame<'_>,
        model: &Model,
        now: Instant,
        wall: SystemTime,
    ) {
        self.selected = self.selected.min(model.rows.len().saturating_sub(1));
        let area = frame.area();
        let width = usize::from(area.width);
        let rows = u16::try_from(model.rows.len()).unwrap_or(u16::MAX).max(1);
        // Two lines for heading and help, one for titles.
        let room = area.height.saturating_sub(3);
        let detail = match room.saturating_sub(rows) {
            spare if spare >= room / 2 => spare,
            _ => room / 2,
        };
        let detail = if detail < DETAIL_MIN { 0 } else { detail };
        let [head, table, lower, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(detail),
            Constraint::Length(1),
        ])
        .areas(area);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let heading = format!("nfsrdma top  {} UTC  {}", clock(wall), model.heading());
        frame.render_widget(Paragraph::new(heading).style(bold), head);
        self.mounts(frame, table, model, now);
        if let Some(row) = model.rows.get(self.selected)
            && detail > 0
        {
            self.lower(frame, lower, row, now);
        }
        let help = if width >= HELP.len() {
            HELP
        } else {
            SHORT_HELP
        };
        frame.render_widget(
            Paragraph::new(help).style(Style::new().add_modifier(Modifier::DIM)),
            foot,
        );
    }

    fn mounts(&self, frame: &mut Frame<'_>, area: Rect, model: &Model, now: Instant) {
        let (titles, lines) = model.table(area.width.into(), now);
        let title = Style::new().add_modifier(Modifier::REVERSED);
        let mut shown = vec![Line::styled(titles, title)];
        let room = usize::from(area.height.saturating_sub(1));
        // Scroll so that the selected row stays visible.
        let first = (self.selected + 1).saturating_sub(room);
        for (at, line) in lines.into_iter().enumerate().skip(first).take(room) {
            let style = match at == self.selected {
                true => Style::new().add_modifier(Modifier::BOLD),
                false => Style::new(),
            };
            shown.push(Line::styled(line, style));
        }
        frame.render_widget(Paragraph::new(shown), area);
    }

    fn lower(&self, frame: &mut Frame<'_>, area: Rect, row: &Row, now: Instant) {
        let [name, below] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let what = match self.detail {
            Detail::Minute => "last minute",
            Detail::Procedures => "procedures",
            Detail::Connections => "connections",
            Detail::Users => "users",
        };
        let sec = row
            .security()
            .map_or(String::new(), |sec| format!(", {sec}"));
        let title = format!("{what}: {} on {}{sec}", row.source, row.directory);
        let underlined = Style::new().add_modifier(Modifier::UNDERLINED);
        frame.render_widget(Paragraph::new(title).style(underlined), name);
        let width = usize::from(below.width);
        let (titles, lines) = match self.detail {
            Detail::Minute => return minute(frame, below, row, now),
            Detail::Procedures => row.procedures(width),
            Detail::Connections => row.connections(width),
            Detail::Users => row.users(width),
        };
        let none = if lines.is_empty() {
            "no calls in the last interval"
        } else {
            ""
        };
        let text: Vec<Line<'_>> = std::iter::once(titles)
            .chain(lines)
            .chain((!none.is_empty()).then(|| none.to_owned()))
            .map(Line::from)
            .collect();
        frame.render_widget(Paragraph::new(text), below);
    }
}

/// A sparkline for each of read, write, operations and latency.
fn minute(frame: &mut Frame<'_>, area: Rect, row: &Row, now: Instant) {
    type Value = fn(&Sample) -> f64;
    type Show = fn(f64) -> String;
    let lines: [(&str, Value, Show); 4] = [
        ("read MB/s", |s| s.rates.read, megabytes),
        ("write MB/s", |s| s.rates.write, megabytes),
        (
            "ops/s",
            |s| s.rates.calls * 1000.0,
            |v| format!("{:.0}", v / 1000.0),
        ),
        (
            "p99",
            |s| s.p99_us.unwrap_or(0.0),
            |v| time((v > 0.0).then_some(v)),
        ),
    ];
    // The sparklines share the height, with a line between them if there is room.
    let count = lines.len() as u16;
    let height = (area.height / count).clamp(1, 3);
    let gap = u16::from(height > 1);
    for (at, (name, value, show)) in lines.into_iter().enumerate() {
        let top = area.y + at as u16 * height;
        if top + height > area.y + area.height {
            break;
        }
        let line = Rect::new(area.x, top, area.width, height - gap);
        let [label, graph] = Layout::horizontal([
            Constraint::Length(LABEL.min(area.width)),
            Constraint::Fill(1),
        ])
        .areas(line);
        let last = row.history.back().map_or(0.0, value);
        let most = row.history.iter().map(value).fold(0.0, f64::max);
        let text = format!("{name:<10} {:>8} max {:>8}", show(last), show(most));
        frame.render_widget(Paragraph::new(text), label);
        let data = row.minute(graph.width.into(), now, value);
        frame.render_widget(Sparkline::default().data(data), graph);
    }
}
