//! A small seeded generator: splitmix64 (Steele, Lea, Flood 2014; read, not copied).

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// For a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: usize) -> usize {
        ((self.bits() as u128 * limit as u128) >> 64) as usize
    }
    /// The place of one of the weights, the likelier the larger it is. Their sum is at least 1.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut draw = self.below(weights.iter().sum());
        let hit = weights.iter().position(|weight| {
            let hit = draw < *weight;
            draw = draw.wrapping_sub(*weight);
            hit
        });
        hit.expect("below the sum")
    }
    /// One of the elements.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
