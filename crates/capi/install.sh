#!/bin/sh
# Installs Overspill's library for C: install.sh ARCHIVE PREFIX
# ARCHIVE is what cargo makes of this crate (liboverspill_capi.a). The files go to $DESTDIR$PREFIX; CC names the compiler.
#
#   include/overspill.h, overspill.hpp   lib/liboverspill.so.0.1.0, and the links .so.0 and .so
#   lib/pkgconfig/overspill.pc           lib/liboverspill.a
#
# Rust's archive defines a few thousand symbols, some of which (rust_eh_personality) would clash with those of another Rust library
# in the same program. So both libraries are made of one object file in which only the functions of liboverspill.map are global.
set -eu
archive=$1 prefix=$2
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^#define OVERSPILL_VERSION "\(.*\)"$/\1/p' "$here/include/overspill.h")
soname=liboverspill.so.${version%%.*}
root=${DESTDIR:-}$prefix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

names=$(sed -n 's/^ *\(overspill_[a-z_]*\);$/\1/p' "$here/liboverspill.map")
roots=$(for name in $names; do printf ' -u %s' "$name"; done)
# shellcheck disable=SC2086 # words are meant to be split
ld -r --gc-sections --strip-debug $roots -o "$work/whole.o" "$archive"
printf '%s\n' $names >"$work/names"
# .llvm*: the compiler's intermediate code of the standard library, which linkers have no use for
objcopy --keep-global-symbols="$work/names" --remove-section='.llvm*' "$work/whole.o" "$work/overspill.o"

mkdir -p "$root/include" "$root/lib/pkgconfig"
install -m 644 "$here/include/overspill.h" "$here/include/overspill.hpp" "$root/include"
rm -f "$root/lib/liboverspill.a"
ar rcs "$root/lib/liboverspill.a" "$work/overspill.o"
# nodelete: its handler and its threads stay when a program gives the library up with dlclose
${CC:-cc} -shared -o "$work/so" "$work/overspill.o" -Wl,--gc-sections -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete \
    -Wl,-soname,"$soname" -Wl,--version-script="$here/liboverspill.map" -pthread -ldl -lm
install -m 755 "$work/so" "$root/lib/liboverspill.so.$version"
ln -sf "liboverspill.so.$version" "$root/lib/$soname"
ln -sf "$soname" "$root/lib/liboverspill.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/overspill.pc.in" >"$work/pc"
install -m 644 "$work/pc" "$root/lib/pkgconfig/overspill.pc"
