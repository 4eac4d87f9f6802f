//! Hostile bytes: random ones, HTTP/2 that is nearly right, and protobuf that is not. Seeded; a
//! failing run prints its seed.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use paceline_tests::prompts::Dice;
use paceline_tests::usage::resident;
use paceline_tests::{Stack, chat};

use crate::http2::{PREFACE, frame, headers};

/// The run is a function of it.
const SEED: u64 = 11;
/// Growth that counts as flat.
const FLAT_BYTES: u64 = 16 << 20;

fn random(dice: &mut Dice, most: u64) -> Vec<u8> {
    (0..dice.roll(most)).map(|_| dice.roll(256) as u8).collect()
}

const PATHS: [&str; 5] = [
    "/paceline.v1.Inference/Generate",
    "/paceline.v1.Inference/Chat",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/nothing",
];

/// One connection's bytes.
fn hostile(dice: &mut Dice) -> Vec<u8> {
    let kind = dice.roll(8);
    if kind == 0 {
        return random(dice, 2_000);
    }
    let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
    let path = PATHS[dice.roll(PATHS.len() as u64) as usize];
    match kind {
        // Frames of any kind, flags and stream.
        1 | 2 => {
            for _ in 0..dice.roll(20) {
                let payload = random(dice, 300);
                let [kind, flags, stream] = [12, 256, 9].map(|sides| dice.roll(sides));
                bytes.extend(frame(kind as u8, flags as u8, stream as u32, &payload));
            }
        }
        // Header blocks of any bytes.
        3 => {
            let block = random(dice, 4_000);
            bytes.extend(frame(1, 4, 1, &block));
        }
        // A header block without end.
        4 => {
            bytes.extend(frame(1, 0, 1, &headers(path)));
            for _ in 0..dice.roll(300) {
                bytes.extend(frame(9, 0, 1, &[0, 1, b'a', 1, b'b'].repeat(20)));
            }
        }
        // Requests that are reset at once.
        5 => {
            for at in 0..dice.roll(300) as u32 {
                bytes.extend(frame(1, 4, 2 * at + 1, &headers(path)));
                bytes.extend(frame(3, 0, 2 * at + 1, &[0, 0, 0, 8]));
            }
        }
        // A proper request whose message is none, or none that long.
        _ => {
            bytes.extend(frame(1, 4, 1, &headers(path)));
            let message = random(dice, 1_000);
            let length =
                if dice.roll(3) == 0 { dice.roll(1 << 32) as u32 } else { message.len() as u32 };
            let flag = u8::from(dice.roll(8) == 0);
            bytes.extend(frame(0, 1, 1, &[&[flag], &length.to_be_bytes()[..], &message].concat()));
        }
    }
    // Cut somewhere, now and then.
    if dice.roll(4) == 0 {
        bytes.truncate(dice.roll(bytes.len() as u64) as usize);
    }
    bytes
}

/// Sends the bytes, closes this side, and reads until the service has closed the other.
fn visit(address: &str, bytes: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a bound");
    // The service may have closed already.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = [0; 4_096];
    loop {
        match stream.read(&mut answer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("not closed within 30 s: {bytes:02x?}")
            }
            Err(_) => return,
        }
    }
}

fn flood(address: &str, seed: u64, count: usize) {
    std::thread::scope(|scope| {
        for part in 0..8 {
            scope.spawn(move || {
                let mut dice = Dice(seed * 8 + part + 1);
                for _ in 0..count / 8 {
                    visit(address, &hostile(&mut dice));
                }
            });
        }
    });
}

/// Bytes the gateway held before and after.
fn withstands(count: usize) -> (u64, u64) {
    let stack = Stack::ready("");
    let gateway = stack.pid("gateway");
    // Buffers and threads that any load brings.
    flood(&stack.address(), 0, 400);
    let before = resident(gateway);
    let expected = stack.ask(chat("List three fruits.").exactly(40)).expect("served").ids;
    let address = stack.address();
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(&address, SEED, count));
        while !flooding.is_finished() {
            let answer =
                stack.ask(chat("List three fruits.").exactly(40)).expect("served beside them");
            assert_eq!(answer.ids.len(), expected.len());
        }
    });
    let after = resident(gateway);
    assert!(after <= before + FLAT_BYTES, "seed {SEED}: {before} -> {after} bytes");
    assert_eq!(stack.pid("gateway"), gateway, "the gateway is up");
    assert!(
        !std::fs::read_to_string(stack.run_dir().join("gateway.log"))
            .expect("there is a log")
            .contains("panic"),
        "nothing panicked"
    );
    stack.stop();
    (before, after)
}

#[test]
fn a_thousand_malformed_connections_leave_nothing_behind() {
    println!("before and after: {:?} bytes", withstands(1_000));
}

#[test]
#[ignore = "soak: ten times the suite's; run by `make soak`"]
fn ten_thousand_malformed_connections_leave_nothing_behind() {
    println!("before and after: {:?} bytes", withstands(10_000));
}
