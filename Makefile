# idattn: `make` builds build/idattn; `make demo` and `make test` are the two commands of the README; `make help` lists the rest.
# One object folder per configuration (CONFIG=release|debug|asan), so no target needs `clean`.

CC      ?= cc
ifeq ($(origin CC),default)
CC      := gcc
endif
CONFIG  ?= release
PREFIX  ?= /usr/local
DESTDIR ?=
# All cores (a sub-make has its parent's); V=1 shows the commands.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
SAY      = $(if $V,,@echo "  $1 $@";)
B       := build/$(CONFIG)$(if $(filter-out gcc cc,$(notdir $(CC))),-$(notdir $(CC)))
ARCH    := $(shell uname -m)

WARN    := -Wall -Wextra -Werror -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
           -Wno-float-conversion -Wno-unknown-warning-option
DEPS    := openblas jansson libxxhash libzstd zlib libpcre2-8 libutf8proc
PKGS    := build-essential pkg-config libopenblas-pthread-dev libjansson-dev libxxhash-dev libzstd-dev zlib1g-dev librandom123-dev \
           libpcre2-dev libutf8proc-dev
TESTPKGS := libcmocka-dev python3

OPT.release := -O3 -DNDEBUG
OPT.debug   := -O1 -g -DIDA_DEBUG
OPT.asan    := -O1 -g -DIDA_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer \
               -Wno-format-truncation # gcc's value ranges are lost under instrumentation
OPT.fuzz    := $(OPT.asan) -fsanitize=fuzzer-no-link
LDOPT.asan  := -fsanitize=address,undefined
LDOPT.fuzz  := $(LDOPT.asan)

# Floating point: contraction to FMA is allowed, errno and traps are not needed; no fast-math (docs/architecture.md).
CFLAGS  ?=
ALLC    := -std=c17 -D_GNU_SOURCE -Iinclude -Isrc $(WARN) $(OPT.$(CONFIG)) -fPIC -fvisibility=hidden -ffp-contract=fast \
           -fno-math-errno -fno-trapping-math -pthread -MMD -MP $(shell pkg-config --cflags $(DEPS) 2>/dev/null) $(CFLAGS)
LIBS    := $(shell pkg-config --libs $(DEPS) 2>/dev/null) -lm -ldl -pthread $(LDOPT.$(CONFIG)) $(LDFLAGS)

ifeq ($(ARCH),x86_64)
ISAS    := base avx2 avx512
else
ISAS    := base
endif
ISA.base   :=
ISA.avx2   := -mavx2 -mfma -mf16c
ISA.avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512

# Sources: a room is a folder. ops/ref and the model are also compiled for double (the truth chain); ops/cpu once per ISA.
REF     := $(wildcard src/ops/ref/*.c)
CPU     := $(wildcard src/ops/cpu/*.c)
MODEL   := $(wildcard src/model/*.c)
REAL    := $(filter-out src/layers/call_%,$(wildcard src/layers/*.c)) $(patsubst %,src/model/%.c,acts backward blocks forward init \
           model params recorded state)
LIBSRC  := $(filter-out $(CPU),$(wildcard src/core/*.c src/ops/*.c src/ops/ref/*.c src/model/*.c src/text/*.c src/data/*.c src/io/*.c \
           src/layers/*.c src/train/*.c src/infer/*.c src/eval/*.c src/report/*.c src/bench/*.c src/api/*.c))
CLISRC  := $(wildcard src/cli/*.c)
LIBOBJ  := $(LIBSRC:%.c=$B/%.o) $(REF:%.c=$B/f64/%.o) $(foreach i,$(ISAS),$(CPU:%.c=$B/$i/%.o))
CLIOBJ  := $(CLISRC:%.c=$B/%.o)

.PHONY: all lib demo test test-fast test-oracle setup install uninstall help fuzz lint clean bench
all: setup build/idattn

# The packages, installed by the project itself. root or sudo; anyone else is told what to install.
setup: | build/.setup
build/.setup:
	@mkdir -p build
	@tools/setup.sh build $(PKGS)
	@touch $@
build/.setup-test: | build/.setup
	@tools/setup.sh test $(TESTPKGS)
	@touch $@

ifeq ($(wildcard build/.setup),)
# pkg-config answers only after set-up: run the rest in a second make.
build/idattn build/libidattn_cuda.so lib install demo test test-fast test-oracle fuzz bench: build/.setup
	@$(MAKE) --no-print-directory $@
else
lib: $B/libidattn.a $B/libidattn.so
build/idattn: $B/idattn
	@ln -sf $(patsubst build/%,%,$<) $@
endif

# Other flags or another compiler rebuild what was built with the old ones.
FLAGS   := '$(subst ','\'',$(CC) $(ALLC))'
$B/flags: FORCE
	@mkdir -p $(@D); echo $(FLAGS) | cmp -s - $@ || echo $(FLAGS) > $@
$(LIBOBJ) $(CLIOBJ): $B/flags

$B/%.o: %.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALLC) -c $< -o $@
$B/src/core/rng.o: ALLC += -ffp-contract=off # its bits are the same on every machine
$B/f64/%.o: %.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALLC) -DIDA_REAL=double -c $< -o $@
define ISA_RULE
$B/$1/%.o: %.c
	@mkdir -p $$(@D)
	$$(call SAY,CC)$$(CC) $$(ALLC) $$(ISA.$1) -DIDA_ISA_NAME=$1 -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call ISA_RULE,$i)))

$B/libidattn.a: $(LIBOBJ)
	$(call SAY,AR)rm -f $@ && ar rcs $@ $^
$B/libidattn.so: $(LIBOBJ)
	$(call SAY,LD)$(CC) -shared -Wl,-soname,libidattn.so.0 -Wl,--no-undefined $^ -o $@ $(LIBS)
$B/idattn: $(CLIOBJ) $B/libidattn.a
	$(call SAY,LD)$(CC) $^ -o $@ $(LIBS)

# The commit in the report's footer: the header changes only when the commit does.
COMMIT  := $(shell git describe --always --dirty 2>/dev/null)
$B/commit.h: FORCE
	@mkdir -p $(@D); echo '#define IDA_COMMIT "$(COMMIT)"' | cmp -s - $@ || echo '#define IDA_COMMIT "$(COMMIT)"' > $@
FORCE:
$B/src/eval/report.o: ALLC += -include $B/commit.h
$B/src/eval/report.o: $B/commit.h

include tests/tests.mk
include src/ops/cuda/cuda.mk

$B/rdb_text $B/tokenizer_pipe: $B/%: tools/%.c $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $< $B/libidattn.a -o $@ $(LIBS)

ifneq ($(wildcard build/.setup),)
demo: build/idattn $B/rdb_text
	@IDATTN=$B/idattn RDB_TEXT=$B/rdb_text tools/demo.sh
endif

# For tuning the kernels (bench/mixer_core.c).
$B/bench/mixer_core: bench/mixer_core.c $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $< $B/libidattn.a -o $@ $(LIBS)
ifneq ($(wildcard build/.setup),)
bench: $B/bench/mixer_core
endif

# ---- installation. The man page is written by the program from its option tables.
VERSION := $(shell sed -n 's/.*IDA_VERSION_STRING "\(.*\)"/\1/p' include/idattn/base.h)
INST     = $(DESTDIR)$(PREFIX)
$B/idattn.1: $B/idattn
	@$< help --man > $@.tmp && mv $@.tmp $@
ifneq ($(wildcard build/.setup),)
install: $B/idattn $B/libidattn.a $B/libidattn.so $(BACKEND) $B/idattn.1
	install -d $(INST)/bin $(INST)/include/idattn $(INST)/lib/pkgconfig $(INST)/share/man/man1
	install -m 755 $B/idattn $(INST)/bin/idattn
	install -m 644 include/idattn.h $(INST)/include/idattn.h
	install -m 644 include/idattn/*.h $(INST)/include/idattn
	install -m 644 $B/libidattn.a $(INST)/lib/libidattn.a
	install -m 755 $B/libidattn.so $(INST)/lib/libidattn.so.0
	ln -sf libidattn.so.0 $(INST)/lib/libidattn.so
	$(if $(BACKEND),install -m 755 $(BACKEND) $(INST)/lib/libidattn_cuda.so)
	install -m 644 $B/idattn.1 $(INST)/share/man/man1/idattn.1
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@DEPS@|$(strip $(shell pkg-config --libs $(DEPS)))|' \
	    tools/idattn.pc.in > $(INST)/lib/pkgconfig/idattn.pc
endif
uninstall:
	rm -f $(patsubst %,$(INST)/%,$(wildcard include/idattn/*.h)) $(INST)/bin/idattn $(INST)/include/idattn.h $(INST)/lib/libidattn.a $(INST)/lib/libidattn.so.0 $(INST)/lib/libidattn.so \
	      $(INST)/lib/libidattn_cuda.so \
	      $(INST)/share/man/man1/idattn.1 $(INST)/lib/pkgconfig/idattn.pc
	-rmdir $(INST)/include/idattn 2>/dev/null || true

help:
	@echo 'make                build/idattn (installs missing Debian packages first)'
	@echo 'make demo           train and compare three models on a real text; TEXT=file for your own'
	@echo 'make test           everything; make test-fast: release build only, under a minute'
	@echo 'make test-oracle    tokenizers against HF: 100,000 strings a family (PyPI); ORACLE=folder of real tokenizer files'
	@echo 'make bench          build/release/bench/mixer_core, timings of the mixer kernels alone'
	@echo 'make fuzz           libFuzzer on every parser, FUZZ_SECONDS=60 each (needs clang)'
	@echo 'make install        PREFIX=/usr/local DESTDIR=; make uninstall removes the same files'
	@echo 'make lib            static and shared library'
	@echo 'make test-cuda      on a machine with a GPU: every CUDA op against the reference; make bench-cuda: their speed'
	@echo 'make bundle         program, CUDA backend and its checks with static libraries, for a GPU machine that has no packages'
	@echo 'variables           CONFIG=release|debug|asan, CC=clang, V=1 (show commands), CFLAGS, LDFLAGS,'
	@echo '                    NVCC (empty: no CUDA backend), NVARCH, NVFLAGS'

clean:
	rm -rf build

-include $(shell find build $(filter-out build/%,$B) -name '*.d' 2>/dev/null)
