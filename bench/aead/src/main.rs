//! Measures the cost of sealing a page with each AEAD that was considered. Prints a Markdown table. Each candidate seals 2 MiB of
//! pages, from one buffer into another; if its interface works in place, the copy before it counts. The candidates take turns for
//! 21 rounds; the lowest time counts.

use aes_gcm::{AeadInOut, KeyInit};
use std::hint::black_box;
use std::time::Instant;

const PAGE: usize = 4096;
const PAGES: usize = 512;

type Seal<'a> = Box<dyn FnMut(u64, &[u8], &mut [u8]) + 'a>;

fn nonce<const N: usize>(number: u64) -> [u8; N] {
    let mut nonce = [0; N];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    nonce
}

fn ring(algorithm: &'static ring::aead::Algorithm) -> Seal<'static> {
    use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
    let key = LessSafeKey::new(UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()]).expect("a key"));
    Box::new(move |number, plain, sealed| {
        sealed.copy_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce(number));
        _ = black_box(key.seal_in_place_separate_tag(nonce, Aad::empty(), sealed).expect("it seals"));
    })
}

macro_rules! rust_crypto {
    ($cipher:ty, $key:expr) => {{
        let cipher = <$cipher>::new(&$key.into());
        Box::new(move |number: u64, plain: &[u8], sealed: &mut [u8]| {
            sealed.copy_from_slice(plain);
            let nonce = nonce::<12>(number);
            black_box(cipher.encrypt_inout_detached(&nonce.into(), &[], sealed.into()).expect("it seals"));
        }) as Seal
    }};
}

fn main() {
    let plain: Vec<u8> = (0..PAGE * PAGES).map(|i| (i as u32).wrapping_mul(2_654_435_761).rotate_left(7) as u8).collect();
    let mut sealed = vec![0; PAGE * PAGES];
    let mut candidates: Vec<(&str, Seal, f64)> = vec![
        ("copy, for scale", Box::new(|_, plain, sealed| sealed.copy_from_slice(plain)), f64::MAX),
        ("XXH3, 64 bits (no encryption)", Box::new(|_, plain, _| _ = black_box(xxhash_rust::xxh3::xxh3_64(plain))), f64::MAX),
        ("XXH3, 128 bits (no encryption)", Box::new(|_, plain, _| _ = black_box(xxhash_rust::xxh3::xxh3_128(plain))), f64::MAX),
        (
            "AEGIS-128L, aegis",
            Box::new(|number, plain, sealed| {
                let mut encryptor = aegis::aegis128l::Aegis128L::<16>::new(&[7; 16], &nonce(number)).encryptor(&[]);
                encryptor.update(plain, sealed);
                black_box(encryptor.finalize());
            }),
            f64::MAX,
        ),
        ("AES-128-GCM, ring", ring(&ring::aead::AES_128_GCM), f64::MAX),
        ("AES-256-GCM, ring", ring(&ring::aead::AES_256_GCM), f64::MAX),
        ("AES-128-GCM, aes-gcm (pure Rust)", rust_crypto!(aes_gcm::Aes128Gcm, [7; 16]), f64::MAX),
        ("AES-256-GCM, aes-gcm (pure Rust)", rust_crypto!(aes_gcm::Aes256Gcm, [7; 32]), f64::MAX),
        ("AES-128-GCM-SIV, aes-gcm-siv (pure Rust)", rust_crypto!(aes_gcm_siv::Aes128GcmSiv, [7; 16]), f64::MAX),
        ("ChaCha20-Poly1305, ring", ring(&ring::aead::CHACHA20_POLY1305), f64::MAX),
        ("ChaCha20-Poly1305, chacha20poly1305 (pure Rust)", rust_crypto!(chacha20poly1305::ChaCha20Poly1305, [7; 32]), f64::MAX),
    ];
    let mut number = 0;
    for _ in 0..21 {
        for (_, seal, best) in &mut candidates {
            let start = Instant::now();
            for (plain, sealed) in plain.chunks_exact(PAGE).zip(sealed.chunks_exact_mut(PAGE)) {
                number += 1;
                seal(number, plain, sealed);
            }
            *best = best.min(start.elapsed().as_nanos() as f64 / PAGES as f64);
        }
    }
    println!("| what | ns per page |\n| --- | --- |");
    for (name, _, best) in &candidates {
        println!("| {name} | {best:.0} |");
    }
}
