// A map from strings to objects under a generational collector, a sort, then look-ups at random.
let seed = 42;
const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff);
const map = new Map();
for (let i = 0; i < 1500000; i++) map.set(`key-${next()}`, { i, value: `value-${i}` });
const keys = [...map.keys()].sort();
let sum = 0;
for (let i = 0; i < 300000; i++) sum += map.get(keys[next() % keys.length]).i;
console.log(keys.length, sum, keys[0], keys[keys.length - 1]);
