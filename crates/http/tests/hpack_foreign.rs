//! HPACK against itself and against an implementation written by others.

use proptest::collection::vec;
use proptest::prelude::*;
use tollway_http::hpack::{Decoder, Encoder, ListLimits};

type Line = (Vec<u8>, Vec<u8>, bool);

const UNLIMITED: ListLimits = ListLimits { bytes: usize::MAX, lines: usize::MAX };

const KNOWN: &[&str] = &["x-tenant", ":path", "cookie", "authorization", ":status", "content-type"];

/// A change of the table's size, or a block.
#[derive(Clone, Debug)]
enum Step {
    TableSize(usize),
    Block(Vec<Line>),
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(steps in steps()) {
        let mut encoder = Encoder::new(8192);
        let mut decoder = Decoder::new();
        for step in steps {
            match step {
                Step::TableSize(bytes) => {
                    encoder.set_peer_limit(bytes);
                    decoder.set_allowed_size(bytes);
                }
                Step::Block(lines) => {
                    let block = encode(&mut encoder, &lines);
                    let decoded = decode(&mut decoder, &block);
                    prop_assert_eq!(without_marks(&decoded), without_marks(&lines));
                    for (before, after) in lines.iter().zip(&decoded) {
                        prop_assert!(after.2 || !before.2, "the mark is lost: {:?}", before);
                    }
                }
            }
        }
    }

    #[test]
    fn a_foreign_decoder_reads_what_we_encode(steps in steps()) {
        let mut encoder = Encoder::new(4096);
        let mut foreign = fluke_hpack::Decoder::new();
        for step in steps {
            match step {
                Step::TableSize(bytes) => encoder.set_peer_limit(bytes),
                Step::Block(lines) => {
                    let block = encode(&mut encoder, &lines);
                    let decoded = foreign.decode(&block).expect("our block is valid");
                    prop_assert_eq!(decoded, without_marks(&lines));
                }
            }
        }
    }

    #[test]
    fn we_decode_what_a_foreign_encoder_writes(blocks in vec(vec(line(), 0..20), 1..20)) {
        let mut foreign = fluke_hpack::Encoder::new();
        let mut decoder = Decoder::new();
        for lines in blocks {
            let lines = without_marks(&lines);
            let block = foreign.encode(lines.iter().map(|(name, value)| (&name[..], &value[..])));
            prop_assert_eq!(without_marks(&decode(&mut decoder, &block)), lines);
        }
    }

    #[test]
    fn noise_never_panics_and_never_hands_on_more_than_the_limits(
        blocks in vec(vec(any::<u8>(), 0..300), 1..10),
    ) {
        let limits = ListLimits { bytes: 1000, lines: 10 };
        let mut decoder = Decoder::new();
        for block in blocks {
            let (mut bytes, mut lines) = (0, 0);
            let _any_outcome = decoder.decode(&block, limits, |field| {
                bytes += field.name.len() + field.value.len() + 32;
                lines += 1;
            });
            prop_assert!(bytes <= 1000 && lines <= 10);
        }
    }

    #[test]
    fn damaged_blocks_never_panic(
        lines in vec(line(), 1..20),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut block = encode(&mut Encoder::new(4096), &lines);
        let at = at.index(block.len());
        block[at] = with;
        let _any_outcome = Decoder::new().decode(&block, UNLIMITED, |_| ());
        let _any_outcome = Decoder::new().decode(&block[..at], UNLIMITED, |_| ());
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop_oneof![Just(0), Just(64), Just(300), Just(4096), Just(100_000), 0..5000_usize];
    let step = prop_oneof![
        1 => sizes.prop_map(Step::TableSize),
        6 => vec(line(), 1..20).prop_map(Step::Block),
    ];
    vec(step, 1..30)
}

/// Names and values that repeat, so that tables matter, and arbitrary ones.
fn line() -> impl Strategy<Value = Line> {
    let name = prop_oneof![
        3 => prop::sample::select(KNOWN).prop_map(|name| name.as_bytes().to_vec()),
        1 => "[a-z][a-z0-9-]{0,30}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        3 => (0..6_u8).prop_map(|nth| format!("a value seen before: {nth}").into_bytes()),
        1 => vec(any::<u8>(), 0..200),
        1 => prop::sample::select(&["200", "GET", "/", ""][..]).prop_map(|v| v.as_bytes().to_vec()),
    ];
    (name, value, prop::bool::weighted(0.1))
}

fn encode(encoder: &mut Encoder, lines: &[Line]) -> Vec<u8> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for (name, value, sensitive) in lines {
        encoder.field(name, value, *sensitive, &mut block);
    }
    block
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Vec<Line> {
    let mut lines = Vec::new();
    decoder
        .decode(block, UNLIMITED, |field| {
            lines.push((field.name.to_vec(), field.value.to_vec(), field.sensitive));
        })
        .expect("the block is valid");
    lines
}

fn without_marks(lines: &[Line]) -> Vec<(Vec<u8>, Vec<u8>)> {
    lines.iter().map(|(name, value, _)| (name.clone(), value.clone())).collect()
}
