//! The swap devices of a running machine: what each has done.

use crate::control::{Figures, Packet, device_packet};
use crate::machine::Machine;
use overspill_swap::DeviceId;
use overspill_vm::pager::Pager;
use overspill_vm::types::PAGE_SIZE;

/// Calls `with` with a `device` packet for each device, until it returns `false`. Returns whether it never did.
pub fn each(machine: &Machine, mut with: impl FnMut(&Packet) -> bool) -> bool {
    for number in 0..crate::setup::DEVICES_MAX {
        let packet = {
            let map = machine.map.read();
            let core = machine.core.lock();
            let pager = core.vm.pager();
            let Some(file) = map.files[number].as_ref().filter(|_| number < pager.devices() as usize) else { continue };
            let inherited = pager.is_inherited(DeviceId(number as u16));
            let figures = Figures {
                number: number as u64,
                size_bytes: file.limit(),
                used_bytes: if inherited { 0 } else { pager.used() * PAGE_SIZE as u64 },
                ..Figures::default()
            };
            device_packet(file.kind().name(), if inherited { "inherited" } else { "on" }, 0, &figures, file.name().bytes())
        };
        if !with(&packet) {
            return false;
        }
    }
    true
}
