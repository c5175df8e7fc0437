# A hash of strings, then look-ups at random.
use strict;
use warnings;
use Digest::SHA;
my $seed = 42;
my $count = 500_000;
sub below { $seed = ($seed * 1103515245 + 12345) & 0x7fffffff; return ($seed >> 8) % $_[0] }
my %map;
$map{"key-$_"} = "value-$_-" . below(1000) for 0 .. $count - 1;
my $sha = Digest::SHA->new(256);
$sha->add($map{'key-' . below($count)}) for 1 .. 100_000;
print scalar(keys %map), ' ', $sha->hexdigest, "\n";
