# Tests: every tests/**/test_*.c is one cmocka program. Included by the Makefile.
TESTSRC := $(wildcard tests/*/test_*.c)
TESTLIB := $(wildcard tests/lib/*.c)
TESTBIN := $(TESTSRC:%.c=$B/%)
TESTFLAGS := -Itests -DIDA_TEST_DATA='"$(CURDIR)/tests/data"'

$B/tests/%: tests/%.c $(TESTLIB) $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $(TESTFLAGS) $(filter %.c,$^) $(TESTEXTRA) $B/libidattn.a -o $@ -lcmocka $(LIBS)

# The model in double (tests/model/test_*_f64.c): model and ref objects of the double build, the rest without element type. Not the library,
# whose float model has the same names.
F64OBJ := $(REAL:%.c=$B/f64/%.o) $(REF:%.c=$B/f64/%.o) $(patsubst %.c,$B/%.o,$(wildcard src/core/*.c)) \
          $(patsubst %,$B/src/model/%.o,config foreign info own presets)
$(filter $B/tests/model/%_f64,$(TESTBIN)): $B/%: %.c $(F64OBJ)
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -DIDA_REAL=double $(TESTFLAGS) $< $(F64OBJ) -o $@ -lcmocka $(LIBS)

# What test_backend loads: one shared object for each STUB of backend_stub.c.
STUBS   := nosymbol refuses otherabi otherops works
STUBSO  := $(STUBS:%=$B/tests/ops/backend_%.so)
$(STUBSO): $B/tests/ops/backend_%.so: tests/ops/backend_stub.c
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -DSTUB=$(STUB.$*) -shared $< -o $@ $(LDOPT.$(CONFIG))
STUB.nosymbol := 0
STUB.refuses  := 1
STUB.otherabi := 2
STUB.otherops := 3
STUB.works    := 4
$B/tests/ops/test_backend: | $(STUBSO)

# What test_device loads: ref behind a device's memory functions.
$B/tests/train/backend_host.so: tests/train/backend_host.c tests/train/backend_host.h $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -shared $< $B/libidattn.a -o $@ $(LIBS)
$B/tests/train/test_device: | $B/tests/train/backend_host.so

# Fuzz targets: with CONFIG=fuzz and clang real fuzzers, else programs that replay a corpus.
FUZZSRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZBIN := $(FUZZSRC:%.c=$B/%)
ifeq ($(CONFIG),fuzz)
FUZZMAIN := -fsanitize=fuzzer
else
FUZZMAIN := tests/fuzz/replay_main.c
endif
$(FUZZBIN): $B/%: %.c $B/libidattn.a $(filter %.c,$(FUZZMAIN))
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -Wno-missing-prototypes $< $(FUZZMAIN) $B/libidattn.a -o $@ $(LIBS)

# What the command-line tests need beside the program.
$B/tests/cli/stdiff: tests/cli/stdiff.c $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $< $B/libidattn.a -o $@ $(LIBS)

# What tests/compat compares a machine by. It calls OpenBLAS and libm, not the library.
$B/tests/compat/fingerprint: tests/compat/fingerprint.c
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $< -o $@ $(LIBS)

# cmocka.h comes with the test packages: with several jobs the order must be said.
$(TESTBIN): | build/.setup-test
.PHONY: test-programs
test-programs: $(TESTBIN) $(FUZZBIN) $B/idattn $B/tests/cli/stdiff $B/tests/compat/fingerprint \
               $B/bench/mixer_core $B/tokenizer_pipe lib

# Tokenizers against HF's own package, in full: ORACLE=folder of real tokenizer files, ORACLE_COUNT strings a family.
ORACLE       ?=
ORACLE_COUNT ?= 100000
.PHONY: test-oracle
ifneq ($(wildcard build/.setup),)
test-oracle: build/release/tokenizer_pipe
	@sh tests/oracle/oracle.sh '$(ORACLE_COUNT)' '$(ORACLE)'
endif

FUZZ_SECONDS ?= 60
# tests/run.sh runs build/release and build/asan.
ifneq ($(filter test test-fast,$(MAKECMDGOALS)),)
ifneq ($B,build/release)
$(error make test and make test-fast test build/release and build/asan: leave CONFIG and B alone, and use gcc (here: $B))
endif
endif
ifneq ($(wildcard build/.setup),)
test-fast: build/.setup-test test-programs
	@tests/run.sh --fast
test: build/.setup-test test-programs
	@$(MAKE) --no-print-directory CONFIG=asan test-programs
	@tests/run.sh
fuzz: build/.setup
	@command -v clang >/dev/null || { echo 'make fuzz needs clang: apt-get install clang' >&2; exit 1; }
	@$(MAKE) --no-print-directory CONFIG=fuzz CC=clang fuzz-programs
	@set -e; for f in $(notdir $(FUZZSRC:.c=)); do \
	    echo "== $$f"; mkdir -p build/fuzz-corpus/$$f; \
	    build/fuzz-clang/tests/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
	        -artifact_prefix=build/fuzz-corpus/ build/fuzz-corpus/$$f tests/fuzz/corpus/$${f#fuzz_}; \
	done
endif
.PHONY: fuzz-programs
fuzz-programs: $(FUZZBIN)
