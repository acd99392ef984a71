/* A stand-in for libnvidia-ml.so.1: answers as the text file named by NVML_STANDIN tells it to.
 *
 *   gpus N                how many there are (default 2)
 *   set NAME GPU VALUE    what a reading is; GPU may be *
 *   fail FUNCTION GPU N   that function returns NVML error N; GPU may be *
 *   lost GPU CALLS        after so many calls on it, that GPU answers only "lost"
 *   dead CALLS            after so many calls in all, everything answers "uninitialized"
 *   slow FUNCTION MS GPU  that function takes so long; without a GPU: of all of them
 *   noinit N              nvmlInit returns error N
 *   grow NAME GPU RATE    a reading grows by so much a second; `samples`: so many a second
 *   sample STAMP GPU PCT  the driver has sampled a utilisation, at so many microseconds
 *   process PID GPU MIB   a process computes there; with -1 MiB it is not told how much it holds
 *   event TYPE GPU DATA   an event happens, once: type 8 is an XID, 2 and 1 ECC errors
 *   set mig GPU N         MIG is on, with N devices
 *   driver MAJOR.MINOR    its version (default 550.163)
 *   set gone GPU 1        it is counted no more, and those behind it move up
 *
 * The file is read anew at each change, so a test may change the world while the recorder runs.
 * Built with -DOLD_DRIVER the functions that old drivers lack are not there at all; with -DCUDA_14,
 * those that go away with CUDA 14.
 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, LOST = 15
};

typedef struct { int index, calls, mig; } Device;
typedef struct { char verb[16], name[64], gpu[8]; double value; } Rule;

static Device devices[16];
static Rule rules[256];
static int num_rules, num_gpus = 2, total_calls;
static unsigned verbs; /* which there are among the rules: most are not, and cost nothing then */
static char version[16] = "550.163";
static int64_t seen;
static double looked_s = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int news_fd = -1; /* written to when a call finds a GPU lost: whoever waits is to look */

static double now_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void pause_ms(double ms) {
    struct timespec pause = {(time_t)(ms / 1000), (long)ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static unsigned bit_of(const char *verb) { return 1U << ((verb[0] ^ 3 * verb[1]) & 31); }

static void load_anew(void) {
    const char *path = getenv("NVML_STANDIN");
    struct stat info;
    if (path == NULL || stat(path, &info) != 0) return;
    int64_t stamp = info.st_mtim.tv_sec * 1000000000LL + info.st_mtim.tv_nsec + info.st_size;
    if (stamp == seen) return;
    seen = stamp;
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    char line[256];
    num_rules = 0;
    while (num_rules < 256 && fgets(line, sizeof line, file)) {
        Rule *r = &rules[num_rules];
        memset(r, 0, sizeof *r);
        if (sscanf(line, "gpus %d", &num_gpus) == 1 || sscanf(line, "driver %15s", version) == 1) continue;
        if (sscanf(line, "%15s", r->verb) != 1) continue;
        if (strstr("set fail grow sample process event", r->verb)) {
            if (sscanf(line, "%*s %63s %7s %lf", r->name, r->gpu, &r->value) == 3) num_rules++;
        } else if (!strcmp(r->verb, "lost")) {
            if (sscanf(line, "%*s %7s %lf", r->gpu, &r->value) == 2) num_rules++;
        } else if (!strcmp(r->verb, "slow")) {
            if (sscanf(line, "%*s %63s %lf %7s", r->name, &r->value, r->gpu) >= 2) num_rules++;
        } else if (sscanf(line, "%*s %lf", &r->value) == 1) {
            num_rules++;
        }
    }
    fclose(file);
    verbs = 0;
    for (int i = 0; i < num_rules; i++) verbs |= bit_of(rules[i].verb);
}

static void load(void) { /* a look at the file every few milliseconds costs nothing */
    double tick_s = now_s(CLOCK_MONOTONIC_COARSE);
    pthread_mutex_lock(&lock);
    if (tick_s != looked_s) load_anew();
    looked_s = tick_s;
    pthread_mutex_unlock(&lock);
}

static const Rule *find(const char *verb, const char *name, int gpu) {
    if (!(verbs & bit_of(verb))) return NULL;
    for (int i = num_rules - 1; i >= 0; i--) { /* the last one that fits wins */
        const Rule *r = &rules[i];
        if (r->verb[0] != verb[0] || strcmp(r->verb, verb)) continue;
        if (name != NULL && (r->name[0] != name[0] || strcmp(r->name, name))) continue;
        if (r->gpu[0] == 0 || r->gpu[0] == '*' || atoi(r->gpu) == gpu) return r;
    }
    return NULL;
}

static int enter(const char *function, Device *device) {
    load();
    int gpu = device ? device->index : -1;
    const Rule *slow = find("slow", function, gpu), *dead = find("dead", NULL, gpu);
    if (slow) pause_ms(slow->value);
    if (dead && (device ? total_calls++ : total_calls) >= dead->value) return UNINITIALIZED;
    if (device) {
        const Rule *lost = find("lost", NULL, gpu);
        if (lost) eventfd_write(news_fd, 1);
        if (lost && device->calls++ >= lost->value) return LOST;
    }
    const Rule *fail = find("fail", function, gpu);
    return fail ? (int)fail->value : SUCCESS;
}

static double value(const char *name, Device *device, double otherwise) {
    const Rule *rule = find("set", name, device->index), *grow = find("grow", name, device->index);
    double grown = grow ? grow->value * now_s(CLOCK_MONOTONIC) : 0;
    return grown + (rule ? rule->value : otherwise);
}

#define ENTER(device) do { int rc = enter(__func__, device); if (rc) return rc; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    const Rule *rule = find("noinit", NULL, -1);
    return rule ? (int)rule->value : SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { ENTER(NULL); snprintf(text, n, "%s.01", version); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, unsigned n) { ENTER(NULL); snprintf(text, n, "12.%s.01", version); return SUCCESS; }
static int is_gone(int gpu) { return find("set", "gone", gpu) != NULL; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = 0;
    for (int gpu = 0; gpu < num_gpus; gpu++) *count += !is_gone(gpu);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    int gpu = 0;
    load();
    for (unsigned left = index; gpu < num_gpus; gpu++) {
        if (!is_gone(gpu) && left-- == 0) break;
    }
    if (gpu >= num_gpus || gpu >= 16) return INVALID_ARGUMENT;
    devices[gpu].index = gpu;
    ENTER(&devices[gpu]);
    *device = &devices[gpu];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    int gpu = -1;
    load();
    if (sscanf(uuid, "GPU-00000000-0000-0000-0000-%d", &gpu) != 1) return INVALID_ARGUMENT;
    if (gpu < 0 || gpu >= num_gpus || gpu >= 16 || is_gone(gpu)) return NOT_FOUND;
    devices[gpu].index = gpu;
    ENTER(&devices[gpu]);
    *device = &devices[gpu];
    return SUCCESS;
}
int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) {
    ENTER(d);
    int id = d->mig ? 100 * d->index + d->mig : d->index;
    snprintf(text, n, "%s-00000000-0000-0000-0000-%012d", d->mig ? "MIG" : "GPU", id);
    return SUCCESS;
}
int nvmlDeviceGetName(Device *d, char *text, unsigned n) { ENTER(d); snprintf(text, n, "NVIDIA Stand-In"); return SUCCESS; }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) { ENTER(d); *mw = value("power_mw", d, 294999); return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { ENTER(d); *mw = value("limit_mw", d, 700000); return SUCCESS; }
#ifdef CUDA_14
int nvmlDeviceGetTemperatureV(Device *d, int *asked) { ENTER(d); if (asked[0] != 0x100000C || asked[1]) return INVALID_ARGUMENT; asked[2] = value("temp", d, 61); return SUCCESS; }
#else
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *c) { (void)sensor; ENTER(d); *c = value("temp", d, 61); return SUCCESS; }
#endif
int nvmlDeviceGetUtilizationRates(Device *d, unsigned *gpu_mem) {
    ENTER(d);
    gpu_mem[0] = value("sm", d, 98);
    gpu_mem[1] = value("mem", d, 57);
    return SUCCESS;
}
static int percent(Device *d, const char *name, unsigned *pct, unsigned *period) { *pct = value(name, d, 0); *period = 167000; return SUCCESS; }
int nvmlDeviceGetEncoderUtilization(Device *d, unsigned *pct, unsigned *us) { ENTER(d); return percent(d, "enc", pct, us); }
int nvmlDeviceGetDecoderUtilization(Device *d, unsigned *pct, unsigned *us) { ENTER(d); return percent(d, "dec", pct, us); }
typedef struct { unsigned long long total, free, used; } Memory;
static int mig_memory(Device *d, Memory *m) {
    m->total = 9728ULL << 20;
    m->used = (unsigned long long)value("mig_used_mib", d, 12) * d->mig << 20;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) { ENTER(d); if (d->mig) return mig_memory(d, m); m->total = value("fb_total", d, 81559.0 * 1048576); m->used = value("fb_v1", d, 72896.0 * 1048576); return SUCCESS; }
int nvmlDeviceGetBAR1MemoryInfo(Device *d, unsigned long long *m) { ENTER(d); m[2] = value("bar1", d, 4.9 * 1048576); return SUCCESS; }
int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned *kb) { ENTER(d); *kb = value(counter ? "rx_kb" : "tx_kb", d, counter ? 847999 : 9999); return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *lanes) { ENTER(d); *lanes = value("pcie_width", d, 16); return SUCCESS; }
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *up) {
    ENTER(d);
    if (link >= 18) return INVALID_ARGUMENT;
    *up = link < value("nvlinks", d, 18);
    return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Device *d, unsigned *is_pending) { ENTER(d); *is_pending = value("pages_pending", d, 0); return SUCCESS; }
int nvmlDeviceGetFanSpeed(Device *d, unsigned *pct) { ENTER(d); *pct = (unsigned)value("fan", d, 42); return SUCCESS; }
int nvmlDeviceGetMaxClockInfo(Device *d, int kind, unsigned *mhz) { ENTER(d); *mhz = kind == 1 ? 1980 : 2619; return SUCCESS; }
int nvmlDeviceGetClockInfo(Device *d, int kind, unsigned *mhz) { ENTER(d); *mhz = kind == 2 ? 2619 : 1980; return SUCCESS; }
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *mj) { ENTER(d); *mj = value("energy_mj", d, 123456789999.0); return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *bits) { ENTER(d); *bits = value("throttle", d, 4); return SUCCESS; }

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *m) { ENTER(d); m->total = value("fb_total", d, 81559.0 * 1048576); m->used = value("fb", d, 71680.5 * 1048576); return SUCCESS; }
int nvmlDeviceGetJpgUtilization(Device *d, unsigned *pct, unsigned *us) { ENTER(d); return percent(d, "jpg", pct, us); }
int nvmlDeviceGetOfaUtilization(Device *d, unsigned *pct, unsigned *us) { ENTER(d); return percent(d, "ofa", pct, us); }
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, unsigned long long *bits) { ENTER(d); *bits = value("throttle", d, 4); return SUCCESS; }
int nvmlDeviceGetConfComputeProtectedMemoryUsage(Device *d, Memory *m) {
    ENTER(d);
    if (!find("set", "ccpm", d->index)) return NOT_SUPPORTED;
    m->used = value("ccpm", d, 0);
    return SUCCESS;
}
typedef struct { unsigned id, scope; int64_t stamp, latency; int type, rc; union { double d; unsigned u; uint64_t ull; } value; } Field;
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    ENTER(d);
    for (int i = 0; i < count; i++) { /* the call succeeds; each entry tells for itself */
        int id = (int)fields[i].id;
        const char *name = id == 82 ? "mtemp" : id == 138 ? "nvtx_kib" : id == 139 ? "nvrx_kib" : "?";
        if (id == 202 || id == 204) name = id == 202 ? "nvtx_bytes" : "nvrx_bytes";
        int known = find("set", name, d->index) || find("grow", name, d->index);
        int fits = id == 82 || (id < 200 ? fields[i].scope == UINT32_MAX : fields[i].scope < value("links", d, 0));
        fields[i].rc = known && fits ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = id == 82 ? 1 : 3;
        fields[i].value.ull = (uint64_t)value(name, d, 0);
    }
    return SUCCESS;
}
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { int gpu, number; } GpmSample;
typedef struct { unsigned id; int rc; double value; const char *text[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmRequest;
int nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *s) { ENTER(d); s->supported = find("set", "gpm", d->index) != NULL; return SUCCESS; }
int nvmlGpmSampleAlloc(GpmSample **s) { *s = calloc(1, sizeof **s); return SUCCESS; }
int nvmlGpmSampleGet(Device *d, GpmSample *s) {
    static int number;
    ENTER(d);
    s->gpu = d->index;
    s->number = ++number;
    return SUCCESS;
}
int nvmlGpmMetricsGet(GpmRequest *r) {
    if (r->version != 1 || r->first->number >= r->second->number) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < r->count; i++) {
        Device d = {r->first->gpu, 0};
        char name[16];
        snprintf(name, sizeof name, "gpm%u", r->metrics[i].id);
        r->metrics[i].rc = find("set", name, d.index) ? SUCCESS : NOT_SUPPORTED;
        r->metrics[i].value = value(name, &d, 0);
    }
    return SUCCESS;
}
int nvmlDeviceGetViolationStatus(Device *d, int policy, uint64_t *times) {
    ENTER(d);
    times[0] = (uint64_t)(now_s(CLOCK_MONOTONIC) * 1e6); /* µs, and ns of violation */
    times[1] = (uint64_t)value(policy == 0 ? "pviol_ns" : "tviol_ns", d, 0);
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int counter, unsigned long long *count) {
    ENTER(d);
    if (counter != 0) return INVALID_ARGUMENT; /* the volatile counter is what dmon shows */
    *count = value(kind == 0 ? "sbecc" : "dbecc", d, 0);
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(d);
    *corrected = value("remap_corrected", d, 0);
    *uncorrected = value("remap_uncorrected", d, 0);
    *pending = value("remap_pending", d, 0);
    *failed = value("remap_failed", d, 0);
    return SUCCESS;
}

typedef struct { uint64_t stamp_us; union { unsigned u; uint64_t ull; } value; } Sample;
int nvmlDeviceGetSamples(Device *d, int kind, uint64_t since_us, int *type, unsigned *count, Sample *samples) {
    ENTER(d);
    if (kind != 1) return NOT_SUPPORTED;
    unsigned room = *count, num = 0;
    *type = 1;
    const Rule *rate = find("grow", "samples", d->index);
    uint64_t step_us = rate ? (uint64_t)(1e6 / rate->value) : 0, last_us = 0;
    if (rate) last_us = (uint64_t)(now_s(CLOCK_REALTIME) * 1e6) / step_us * step_us;
    for (int i = 99; rate && i >= 0; i--) {
        uint64_t stamp_us = last_us - (uint64_t)i * step_us;
        if (stamp_us <= since_us) continue;
        if (num < room) samples[num] = (Sample){stamp_us, {.ull = 50 + stamp_us / step_us % 50}};
        num++;
    }
    for (int i = 0; i < num_rules; i++) {
        const Rule *r = &rules[i];
        uint64_t stamp_us = strtoull(r->name, NULL, 10);
        int mine = r->gpu[0] == '*' || atoi(r->gpu) == d->index;
        if (strcmp(r->verb, "sample") || !mine || stamp_us <= since_us) continue;
        if (num < room) samples[num] = (Sample){stamp_us, {.ull = 0xffffffff00000000 | (unsigned)r->value}};
        num++;
    }
    *count = num;
    return num > room ? INSUFFICIENT_SIZE : num ? SUCCESS : NOT_FOUND;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, char *found) {
    ENTER(d);
    double driver = atof(version); /* of these, entries have 8 bytes of protected memory as well */
    size_t size = sizeof(Process) + (driver >= 535.43 && driver <= 535.86 ? 8 : 0);
    unsigned room = *count, num = 0;
    for (int i = 0; i < num_rules; i++) {
        const Rule *r = &rules[i];
        if (strcmp(r->verb, "process") || (r->gpu[0] != '*' && atoi(r->gpu) != d->index)) continue;
        unsigned long long used = r->value < 0 ? ~0ULL : (unsigned long long)r->value << 20;
        if (num < room) *(Process *)(found + num * size) = (Process){(unsigned)atoi(r->name), used, ~0U, ~0U};
        num++;
    }
    *count = num;
    return num > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    ENTER(d);
    *current = *pending = find("set", "mig", d->index) != NULL;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) { ENTER(d); *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned place, Device **device) {
    static Device migs[16][8];
    ENTER(d);
    if (place >= value("mig", d, 0)) return NOT_FOUND;
    migs[d->index][place].index = d->index;
    migs[d->index][place].mig = (int)place + 1;
    *device = &migs[d->index][place];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) { ENTER(d); *id = 6U + (unsigned)d->mig; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(Device *d, unsigned *id) { ENTER(d); *id = 0; return SUCCESS; }

typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
static int is_registered[16]; /* there is one set at a time */
int nvmlEventSetCreate(void **set) { static int only; ENTER(NULL); *set = &only; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; memset(is_registered, 0, sizeof is_registered); return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(Device *d, unsigned long long *types) { ENTER(d); *types = 1 | 2 | 8; return SUCCESS; }
int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set) {
    (void)set;
    ENTER(d);
    is_registered[d->index] = types != 0;
    return types ? SUCCESS : NOT_SUPPORTED;
}
static int is_any_lost(void) { /* of those in the set: then it answers nothing else any more */
    for (int gpu = 0; gpu < 16; gpu++) {
        const Rule *lost = find("lost", NULL, gpu);
        if (is_registered[gpu] && lost && devices[gpu].calls >= lost->value) return 1;
    }
    return 0;
}

/* As the driver does, wait in the kernel: whoever counts what a caller costs is not to count this. */
static void await_news(int ms) {
    static int files_fd = -1;
    if (files_fd < 0) {
        const char *path = getenv("NVML_STANDIN");
        char folder[4096] = ".";
        if (path && strrchr(path, '/')) snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') + 1 - path), path);
        files_fd = inotify_init1(IN_CLOEXEC);
        inotify_add_watch(files_fd, folder, IN_CLOSE_WRITE | IN_MOVED_TO);
        news_fd = eventfd(0, EFD_CLOEXEC);
        ms = 0; /* what came before is no news any more */
    }
    struct pollfd watched[] = {{files_fd, POLLIN, 0}, {news_fd, POLLIN, 0}};
    char events[4096];
    poll(watched, 2, ms);
    for (int i = 0; i < 2; i++) if (watched[i].revents & POLLIN && read(watched[i].fd, events, sizeof events) < 0) return;
    pthread_mutex_lock(&lock);
    looked_s = -1;
    pthread_mutex_unlock(&lock);
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    static int delivered;
    (void)set;
    double end_s = now_s(CLOCK_MONOTONIC) + timeout_ms / 1e3;
    for (double left_s = timeout_ms / 1e3; left_s > 0; left_s = end_s - now_s(CLOCK_MONOTONIC)) {
        ENTER(NULL);
        if (is_any_lost()) return LOST;
        int number = 0;
        for (int i = 0; i < num_rules; i++) {
            if (strcmp(rules[i].verb, "event") || number++ < delivered) continue;
            delivered++;
            int gpu = atoi(rules[i].gpu);
            if (!is_registered[gpu]) continue;
            *event = (Event){&devices[gpu], strtoull(rules[i].name, NULL, 10), (unsigned long long)rules[i].value, ~0U, ~0U};
            return SUCCESS;
        }
        await_news((int)(left_s * 1000) + 1);
    }
    return TIMEOUT;
}
#endif
