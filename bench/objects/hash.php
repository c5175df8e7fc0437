<?php
// A hash of strings, sorted by key and read in that order.
ini_set('memory_limit', -1);
mt_srand(42);
$map = [];
for ($i = 0; $i < 2000000; $i++) {
    $map['key-' . mt_rand() . "-$i"] = "value-$i";
}
ksort($map, SORT_STRING);
$hash = hash_init('sha256');
foreach ($map as $key => $value) {
    hash_update($hash, $key . $value);
}
echo count($map), ' ', hash_final($hash), "\n";
