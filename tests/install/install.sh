# slow: make install into a folder, then the example is compiled with pkg-config against what was installed, and run.
. "$(dirname "$0")/../cli/lib.sh"
D=$WORK/dest
make_data || exit 1
train run --steps 3 -q || exit 1

works "make install" make -C "$REPO" --no-print-directory install DESTDIR="$D" PREFIX=/opt/idattn
P=$D/opt/idattn
for f in bin/idattn include/idattn.h include/idattn/base.h include/idattn/engine.h lib/libidattn.a lib/libidattn.so.0 lib/libidattn.so lib/pkgconfig/idattn.pc share/man/man1/idattn.1; do
    if [ -s "$P/$f" ]; then ok "installs $f"; else not_ok "installs $f"; fi
done
works "the installed program runs" "$P/bin/idattn" --version
matches "the man page is one" '^\.TH IDATTN 1' "$(head -n 1 "$P/share/man/man1/idattn.1")"

if [ -e "$REPO/build/release/libidattn_cuda.so" ]; then
    matches "the installed program finds the CUDA backend" "/lib/libidattn_cuda.so\"" "$(env -u IDA_CUDA_BACKEND "$P/bin/idattn" doctor --json)"
    same "which exports its entry only" "ida_cuda_backend" "$(nm -D --defined-only "$P/lib/libidattn_cuda.so" | awk '{ print $3 }')"
else
    skip "the CUDA backend" "no nvcc here"
fi

pc() { PKG_CONFIG_PATH=$P/lib/pkgconfig pkg-config --define-variable=prefix="$P" "$@" idattn; }
same "pkg-config knows the version" "$(sed -n 's/.*IDA_VERSION_STRING "\(.*\)"/\1/p' "$P/include/idattn/base.h")" "$(pc --modversion)"
CC=${CC:-cc}
# shellcheck disable=SC2046
works "the example compiles as C17 against the shared library" "$CC" -std=c17 -Wall -Wextra -Werror "$REPO/examples/generate.c" -o ex $(pc --cflags --libs)
works "and runs" env LD_LIBRARY_PATH="$P/lib" ./ex run/step-00000003 "the old"
text=$(cat out.txt)
if [ "$(printf '%s' "$text" | wc -c)" -gt 10 ]; then ok "and prints text"; else not_ok "and prints text" "$text"; fi
# shellcheck disable=SC2046
works "and against the static library" "$CC" -std=c17 "$REPO/examples/generate.c" -o exs $(pc --cflags) "$P/lib/libidattn.a" $(pc --libs --static | sed 's/-lidattn//')
same "which asks for no library that the packages above do not bring" "" "$(pc --libs --static | tr ' ' '\n' | grep gfortran)"
works "that runs without the shared one" ./exs run/step-00000003 "the old"
same "with the same text" "$text" "$(cat out.txt)"
refuses "the example reports a failure" 1 'no_such' ./exs no_such "the old"
printf '#include <idattn.h>\nint main() { return ida_version() == nullptr; }\n' >t.cc
if command -v c++ >/dev/null 2>&1; then
    # shellcheck disable=SC2046
    works "the header is C++ too" c++ -std=c++11 -Wall -Wextra -Werror t.cc -o tcc $(pc --cflags --libs)
else
    skip "the header is C++ too" "no C++ compiler"
fi
undeclared=$(nm -D --defined-only "$P/lib/libidattn.so" | awk '{ print $3 }' | grep -v '^ida_' | grep -v '^_' || true)
same "the shared library exports ida_ names only" "" "$undeclared"
for s in $(nm -D --defined-only "$P/lib/libidattn.so" | awk '$3 ~ /^ida_/ { print $3 }'); do grep -q "$s(" "$P"/include/idattn/*.h || echo "$s"; done >extra.txt
same "and only those of the header" "" "$(cat extra.txt)"

works "make uninstall" make -C "$REPO" --no-print-directory uninstall DESTDIR="$D" PREFIX=/opt/idattn
same "leaves no file" "" "$(find "$D" -type f -o -type l)"
finish
