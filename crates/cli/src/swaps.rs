//! `overspill swaps` shows the swap devices of a running program; `overspill policy` changes its policy. Both use its control
//! socket.

use crate::args::{PolicyArgs, SwapsArgs};
use crate::report::grouped;
use crate::stat::NOTHING;
use crate::{Failure, preflight, printable};
use overspill_linux::control::{Device, Reply, Request};
use overspill_linux::control_client::{self, Connection};
use overspill_linux::size::human;
use overspill_linux::status_file;
use serde_json::{Map, Value};

/// The process for an id or a name; the id may be that of the program, or of the `overspill run` above it.
pub fn process(program: &str) -> Result<u32, Failure> {
    let number = !program.is_empty() && program.bytes().all(|b| b.is_ascii_digit());
    if number {
        return program.parse().map_err(|_| Failure::with_status(NOTHING, format!("there is no process {program}")));
    }
    control_client::find_name(program).map_err(|error| Failure::with_status(NOTHING, error.to_string()))
}

/// Connects to the pager of that process.
pub fn connect(program: &str) -> Result<Connection, Failure> {
    let pid = process(program)?;
    // the status block says which process is the program of a supervisor, and gives a good message if there is none
    let seen = status_file::find(pid).map_err(|error| Failure::with_status(NOTHING, error.to_string()))?;
    Connection::open(seen.program(pid)).map_err(failed)
}

/// The failure of the command for an error of a connection.
pub fn failed(error: control_client::ControlError) -> Failure {
    Failure::with_status(NOTHING, error.to_string())
}

/// Prints the devices.
pub fn swaps(args: &SwapsArgs) -> Result<u8, Failure> {
    let devices = devices(&connect(&args.program)?)?;
    let text = if args.json { devices.iter().map(|d| format!("{}\n", json(d))).collect() } else { table(&devices) };
    crate::print(&text).map(|_| 0)
}

/// Changes the policy.
pub fn policy(args: &PolicyArgs) -> Result<u8, Failure> {
    let policy = preflight::policy("POLICY", Some(&args.policy))?;
    let connection = connect(&args.program)?;
    connection.send(&Request::Policy(policy), &[]).map_err(failed)?;
    connection.receive().map(|_| 0).map_err(failed)
}

/// Asks for the devices.
pub fn devices(connection: &Connection) -> Result<Vec<Device>, Failure> {
    let mut devices = Vec::new();
    connection.send(&Request::Swaps, &[]).map_err(failed)?;
    while let Reply::Device(device) = connection.receive().map_err(failed)? {
        devices.push(device);
    }
    devices.sort_by_key(|d| std::cmp::Reverse(d.priority));
    Ok(devices)
}

/// A device's name for a terminal: another program chose it.
pub fn name(device: &Device) -> String {
    printable(&String::from_utf8_lossy(&device.name))
}

/// The state, and other remarks that no number shows.
fn state(device: &Device) -> String {
    let unaligned = if device.figures.align_refused != 0 { ", cannot be aligned here" } else { "" };
    format!("{}{unaligned}", device.state)
}

fn json(device: &Device) -> Value {
    let mut map = Map::new();
    map.insert("device".into(), String::from_utf8_lossy(&device.name).into());
    map.insert("kind".into(), device.kind.as_str().into());
    map.insert("state".into(), device.state.as_str().into());
    map.insert("priority".into(), device.priority.into());
    for (key, value) in device.figures.each() {
        map.insert(key.into(), value.into());
    }
    Value::Object(map)
}

fn table(devices: &[Device]) -> String {
    let head = ["DEVICE", "KIND", "PRIO", "SIZE", "USED", "IN", "OUT", "ERRORS", "STATE"].map(String::from);
    let rows: Vec<_> = devices
        .iter()
        .map(|d| {
            let f = &d.figures;
            let more = f.files.saturating_sub(1);
            [
                if more > 0 { format!("{} + {more} more", name(d)) } else { name(d) },
                d.kind.clone(),
                d.priority.to_string(),
                if f.size_bytes == 0 { "-".into() } else { human(f.size_bytes) },
                human(f.used_bytes),
                format!("{} ({})", grouped(f.pages_in), grouped(f.reads)),
                format!("{} ({})", grouped(f.pages_out), grouped(f.writes)),
                grouped(f.read_errors + f.write_errors),
                state(d),
            ]
        })
        .collect();
    let all = || std::iter::once(&head).chain(&rows);
    let widths: Vec<_> = (0..head.len()).map(|i| all().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in all() {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // words to the left, numbers to the right
            let left = matches!(i, 0 | 1 | 8);
            let cell = if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            text += &if i == 0 { cell } else { format!("  {cell}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    devices.iter().filter(|d| d.kind == "compressed").for_each(|d| text += &compressed(d));
    text
}

/// The figures of a compressed device, as a line under the table.
fn compressed(device: &Device) -> String {
    let f = &device.figures;
    let overhead = (f.overhead_bytes * 100).checked_div(f.used_bytes).unwrap_or(0);
    format!(
        "{}: {} pages ({}) in {} of memory, ratio {:.1}, {overhead}% of it overhead; {} same-filled; {} did not compress, {} written back\n",
        name(device),
        grouped(f.stored_pages),
        human(f.stored_pages << 12),
        human(f.used_bytes),
        f.ratio_permille as f64 / 1000.0,
        grouped(f.same_filled_pages),
        grouped(f.refused_pages),
        grouped(f.written_back_pages)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_harmless() {
        let mut device = Device::default();
        (device.kind, device.state, device.priority, device.name) = ("file".into(), "on".into(), -1, b"/a\x1b[2J".to_vec());
        let figures = &mut device.figures;
        (figures.size_bytes, figures.used_bytes, figures.pages_in, figures.reads) = (4 << 30, 1 << 20, 1234, 12);
        let text = table(std::slice::from_ref(&device));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            lines[0].find("STATE"),
            lines[1].char_indices().nth(lines[1].chars().count() - 2).map(|(_, _)| lines[1].chars().count() - 2)
        );
        assert!(lines[1].contains("1,234 (12)") && !text.contains('\x1b'), "{text}");
        assert_eq!(json(&device)["used_bytes"], 1 << 20);
        device.figures.files = 3;
        assert!(table(&[device]).contains("[2J + 2 more  file"));
    }
}
