/* backend.c - finds, loads and checks libidattn_cuda.so, and keeps the devices it opened. Nothing of CUDA is linked here, so the
 * library runs where there is none.
 * Invariants: the shared object is loaded at most once and never unloaded once it was accepted; one device per (ordinal, dtype);
 * all under one mutex. A failed attempt leaves nothing behind: the next call tries again. */
#include "ops/backend.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"

#define FILE_NAME "libidattn_cuda.so"

typedef struct opened {
    int ordinal;
    ida_dtype dtype;
    const ida_device *device;
} opened;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const ida_backend *backend;
static char backend_path[PATH_MAX]; /* of the file the loader took */
static opened *devices;
static int64_t n_devices, devices_cap;

static ida_status host_fail(ida_status code, const char *file, int line, const char *text) {
    return ida_fail(code, file, line, "%s", text);
}
static void host_log(const char *line) { ida_log("%s", line); }
static const ida_backend_host host = {.fail = host_fail, .log = host_log};

/* The folder of the program or shared library that holds this code; false when it cannot be told. */
static bool own_folder(char folder[PATH_MAX]) {
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1(&lock, &info, (void **)&map, RTLD_DL_LINKMAP)) return false;
    const char *file = map && map->l_name && map->l_name[0] ? map->l_name : "/proc/self/exe"; /* the program's own name is "" */
    if (!realpath(file, folder)) return false;
    char *slash = strrchr(folder, '/');
    if (!slash) return false;
    slash[slash == folder] = '\0';
    return true;
}

/* The loader believes a file's headers: of one that is cut short it would touch what is not there. */
static ida_status check_file(const char *path) {
    ida_map m;
    if (ida_map_open(path, &m) != IDA_OK) return ida_fail_prefix(IDA_E_UNSUPPORTED, "the CUDA backend cannot be loaded");
    ElfW(Ehdr) h;
    bool whole = true; /* what is no shared object at all the loader says better */
    if (m.size >= (int64_t)sizeof h && memcmp(m.data, ELFMAG, SELFMAG) == 0) {
        const uint64_t size = (uint64_t)m.size;
        memcpy(&h, m.data, sizeof h);
        whole = h.e_shoff <= size && (uint64_t)h.e_shnum * h.e_shentsize <= size - h.e_shoff && h.e_phoff <= size &&
                (uint64_t)h.e_phnum * h.e_phentsize <= size - h.e_phoff && h.e_phentsize == sizeof(ElfW(Phdr));
        for (int i = 0; whole && i < h.e_phnum; i++) {
            ElfW(Phdr) p;
            memcpy(&p, m.data + h.e_phoff + (uint64_t)i * sizeof p, sizeof p);
            whole = p.p_type != PT_LOAD || (p.p_offset <= size && p.p_filesz <= size - p.p_offset);
        }
    }
    ida_map_close(&m);
    IDA_FAIL_IF(!whole, IDA_E_UNSUPPORTED,
                "the CUDA backend cannot be loaded: %s is cut short or damaged; build it again with make, or copy it again", path);
    return IDA_OK;
}

static ida_status load_file(const char *path, void **so) {
    IDA_TRY(check_file(path));
    *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    IDA_FAIL_IF(
        !*so, IDA_E_UNSUPPORTED,
        "the CUDA backend cannot be loaded: %s; build it again with make, and see that the CUDA libraries it names are where "
        "the loader looks (LD_LIBRARY_PATH)",
        dlerror());
    return IDA_OK;
}

/* Takes the first file that is there: one that is there and cannot be loaded is a failure, not a reason to look further. */
static ida_status find(void **so) {
    char folder[PATH_MAX], path[PATH_MAX];
    const char *given = secure_getenv("IDA_CUDA_BACKEND");
    if (given && given[0]) {
        IDA_FAIL_IF(!realpath(given, path), IDA_E_UNSUPPORTED,
                    "no CUDA backend: IDA_CUDA_BACKEND names %s: %s; unset it, or set it to the path of " FILE_NAME, given,
                    strerror(errno));
        return load_file(path, so);
    }
    const bool known = own_folder(folder);
    for (int i = 0; known && i < 2; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s" FILE_NAME, strcmp(folder, "/") ? folder : "", i == 0 ? "" : "../lib/");
        if (n > 0 && n < (int)sizeof path && access(path, F_OK) == 0) return load_file(path, so);
    }
    *so = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (*so) return IDA_OK;
    const char *why = dlerror();
    IDA_FAIL(IDA_E_UNSUPPORTED,
             "no CUDA backend: " FILE_NAME
             " is not in %s, not in its ../lib and not where the loader looks (%s); build it with make where "
             "nvcc is, or set IDA_CUDA_BACKEND to its path",
             known ? folder : "the folder of the program", why ? why : "no reason given");
}

static ida_status check(void *so, const ida_backend **out) {
    struct link_map *map = NULL;
    const char *path = dlinfo(so, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name ? map->l_name : FILE_NAME;
    ida_backend_entry_fn *entry = NULL;
    void *symbol = dlsym(so, IDA_BACKEND_SYMBOL);
    IDA_FAIL_IF(!symbol, IDA_E_UNSUPPORTED,
                "%s is no CUDA backend of idattn: it has no " IDA_BACKEND_SYMBOL "; set IDA_CUDA_BACKEND to " FILE_NAME
                ", or unset it",
                path);
    memcpy(&entry, &symbol, sizeof entry);
    const ida_backend *b = entry(IDA_BACKEND_ABI, &host);
    enum { N_OPS = (int)(sizeof(ida_ops) / sizeof(ida_embed_fwd_fn *)) };
    IDA_FAIL_IF(!b || b->abi != IDA_BACKEND_ABI || b->n_ops != N_OPS, IDA_E_UNSUPPORTED,
                "%s is the CUDA backend of another version of idattn: build and install both together", path);
    snprintf(backend_path, sizeof backend_path, "%s", path);
    *out = b;
    return IDA_OK;
}

/* With the lock held. */
static ida_status load(void) {
    if (backend) return IDA_OK;
    void *so = NULL;
    IDA_TRY(find(&so));
    const ida_status st = check(so, &backend);
    if (st != IDA_OK) dlclose(so);
    return st;
}

/* With the lock held. */
static ida_status open_cuda(int ordinal, ida_dtype dtype, const ida_device **out) {
    for (int64_t i = 0; i < n_devices; i++) {
        if (devices[i].ordinal != ordinal || devices[i].dtype != dtype) continue;
        *out = devices[i].device;
        return IDA_OK;
    }
    IDA_TRY(load());
    IDA_TRY(IDA_GROW(devices, &devices_cap, n_devices + 1, "the list of devices"));
    const ida_device *dev = NULL;
    IDA_TRY(backend->open(ordinal, dtype, &dev));
    devices[n_devices++] = (opened){ordinal, dtype, dev};
    *out = dev;
    return IDA_OK;
}

/* N of "cuda" (0) and "cuda:N". */
static ida_status parse_ordinal(const char *name, int *ordinal) {
    const char *digits = name + strlen("cuda:");
    *ordinal = 0;
    if (strcmp(name, "cuda") == 0) return IDA_OK;
    const size_t n = strlen(digits);
    IDA_FAIL_IF(n == 0 || n > 4 || strspn(digits, "0123456789") != n, IDA_E_ARG,
                "device \"%.80s\": after \"cuda:\" comes the number of a GPU, from 0, as in cuda:1", name);
    for (const char *p = digits; *p; p++) *ordinal = *ordinal * 10 + (*p - '0');
    return IDA_OK;
}

/* *ordinal = -1: the CPU. */
static ida_status parse(const char *name, ida_dtype dtype, int *ordinal) {
    if (strcmp(name, "cpu") == 0) {
        IDA_FAIL_IF(dtype != IDA_F32, IDA_E_UNSUPPORTED,
                    "device \"cpu\" computes in f32 only: ask for f32, or for a cuda device");
        *ordinal = -1;
        return IDA_OK;
    }
    IDA_FAIL_IF(strcmp(name, "cuda") != 0 && strncmp(name, "cuda:", 5) != 0, IDA_E_ARG,
                "unknown device \"%.80s\": there are cpu, cuda and cuda:N", name);
    IDA_TRY(parse_ordinal(name, ordinal));
    IDA_FAIL_IF(dtype != IDA_F32 && dtype != IDA_BF16, IDA_E_UNSUPPORTED, "device \"%s\" computes in f32 or bf16 only", name);
    return IDA_OK;
}

ida_status ida_device_check(const char *name, ida_dtype dtype) {
    int ordinal;
    IDA_NEED(name);
    return parse(name, dtype, &ordinal);
}

ida_status ida_device_open(const char *name, ida_dtype dtype, const ida_device **out) {
    int ordinal;
    IDA_NEED(name);
    IDA_NEED(out);
    *out = NULL;
    IDA_TRY(parse(name, dtype, &ordinal));
    if (ordinal < 0) {
        *out = ida_cpu_device();
        return IDA_OK;
    }
    pthread_mutex_lock(&lock);
    const ida_status st = open_cuda(ordinal, dtype, out);
    pthread_mutex_unlock(&lock);
    return st;
}

/* With the lock held. `text`: the devices as JSON. */
static ida_status describe(char *text, size_t size) {
    IDA_TRY(load());
    return backend->describe(text, size);
}

ida_status ida_backend_doctor(char **json) {
    IDA_NEED(json);
    enum { SIZE = 1 << 16 };
    char *text = NULL;
    IDA_TRY(IDA_ALLOC(text, SIZE, "the list of devices"));
    pthread_mutex_lock(&lock);
    const ida_status st = describe(text, SIZE);
    json_t *list = st == IDA_OK ? json_loads(text, 0, NULL) : json_array();
    json_t *j = json_pack("{s:o, s:o, s:o}", "backend", ida_json_string(backend ? backend_path : NULL), "error",
                          ida_json_string(st != IDA_OK ? ida_last_error() : NULL), "devices", list);
    pthread_mutex_unlock(&lock);
    ida_free(text);
    *json = ida_json_dump(j, JSON_INDENT(2));
    json_decref(j);
    IDA_FAIL_IF(!*json, IDA_E_NOMEM, "out of memory for the list of devices");
    return IDA_OK;
}
