//! The control socket's packets, both ways.
#![no_main]

use libfuzzer_sys::fuzz_target;
use overspill_linux::control::{parse_reply, parse_request, parse_socket_name};

fuzz_target!(|packet: &[u8]| {
    if let Ok(request) = parse_request(packet) {
        let again = request.encode();
        assert_eq!(parse_request(again.bytes()), Ok(request));
    }
    let _ = parse_reply(packet);
    if let Ok(name) = std::str::from_utf8(packet) {
        let _ = parse_socket_name(name);
    }
});
