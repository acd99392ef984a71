/* A stand-in for libnvidia-ml.so.1: answers as the text file named by NVML_STANDIN tells it to.
 *
 *   gpus N                how many there are (default 2)
 *   set NAME GPU VALUE    what a reading is; GPU may be *
 *   fail FUNCTION GPU N   that function returns NVML error N; GPU may be *
 *   lost GPU CALLS        after so many calls on it, that GPU answers only "lost"
 *   dead CALLS            after so many calls in all, everything answers "uninitialized"
 *   slow FUNCTION MS      that function takes so long
 *   noinit N              nvmlInit returns error N
 *
 * The file is read anew at each change, so a test may change the world while the recorder runs.
 * Built with -DOLD_DRIVER the functions that old drivers lack are not there at all.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, LOST = 15 };

typedef struct { int index, calls; } Device;
typedef struct { char verb[16], name[64], gpu[8]; double value; } Rule;

static Device devices[16];
static Rule rules[256];
static int num_rules, num_gpus = 2, total_calls;
static int64_t seen;

static void load(void) {
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
        if (sscanf(line, "gpus %d", &num_gpus) == 1) continue;
        if (sscanf(line, "%15s", r->verb) != 1) continue;
        if (!strcmp(r->verb, "set") || !strcmp(r->verb, "fail")) {
            if (sscanf(line, "%*s %63s %7s %lf", r->name, r->gpu, &r->value) == 3) num_rules++;
        } else if (!strcmp(r->verb, "lost")) {
            if (sscanf(line, "%*s %7s %lf", r->gpu, &r->value) == 2) num_rules++;
        } else if (!strcmp(r->verb, "slow")) {
            if (sscanf(line, "%*s %63s %lf", r->name, &r->value) == 2) num_rules++;
        } else if (sscanf(line, "%*s %lf", &r->value) == 1) {
            num_rules++;
        }
    }
    fclose(file);
}

static const Rule *find(const char *verb, const char *name, int gpu) {
    for (int i = num_rules - 1; i >= 0; i--) { /* the last one that fits wins */
        const Rule *r = &rules[i];
        int fits = r->gpu[0] == 0 || r->gpu[0] == '*' || atoi(r->gpu) == gpu;
        if (!strcmp(r->verb, verb) && (name == NULL || !strcmp(r->name, name)) && fits) return r;
    }
    return NULL;
}

static int enter(const char *function, Device *device) {
    load();
    int gpu = device ? device->index : -1;
    const Rule *slow = find("slow", function, gpu), *dead = find("dead", NULL, gpu);
    if (slow) {
        struct timespec pause = {(time_t)(slow->value / 1000), (long)slow->value % 1000 * 1000000L};
        nanosleep(&pause, NULL);
    }
    if (dead && total_calls++ >= dead->value) return UNINITIALIZED;
    if (device) {
        const Rule *lost = find("lost", NULL, gpu);
        if (lost && device->calls++ >= lost->value) return LOST;
    }
    const Rule *fail = find("fail", function, gpu);
    return fail ? (int)fail->value : SUCCESS;
}

static double value(const char *name, Device *device, double otherwise) {
    const Rule *rule = find("set", name, device->index);
    return rule ? rule->value : otherwise;
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
int nvmlSystemGetDriverVersion(char *text, unsigned n) { ENTER(NULL); snprintf(text, n, "550.163.01"); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, unsigned n) { ENTER(NULL); snprintf(text, n, "12.550.163.01"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { ENTER(NULL); *count = num_gpus; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= (unsigned)num_gpus || index >= 16) return INVALID_ARGUMENT;
    devices[index].index = (int)index;
    ENTER(&devices[index]);
    *device = &devices[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) {
    ENTER(d);
    snprintf(text, n, "GPU-00000000-0000-0000-0000-%012d", d->index);
    return SUCCESS;
}
int nvmlDeviceGetName(Device *d, char *text, unsigned n) { ENTER(d); snprintf(text, n, "NVIDIA Stand-In"); return SUCCESS; }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *mw) { ENTER(d); *mw = value("power_mw", d, 294999); return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *mw) { ENTER(d); *mw = value("limit_mw", d, 700000); return SUCCESS; }
int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *c) { (void)sensor; ENTER(d); *c = value("temp", d, 61); return SUCCESS; }
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
int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) { ENTER(d); m->total = value("fb_total", d, 81559.0 * 1048576); m->used = value("fb_v1", d, 72896.0 * 1048576); return SUCCESS; }
int nvmlDeviceGetBAR1MemoryInfo(Device *d, unsigned long long *m) { ENTER(d); m[2] = value("bar1", d, 4.9 * 1048576); return SUCCESS; }
int nvmlDeviceGetPcieThroughput(Device *d, int counter, unsigned *kb) { ENTER(d); *kb = value(counter ? "rx_kb" : "tx_kb", d, counter ? 847999 : 9999); return SUCCESS; }
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
        fields[i].rc = find("set", "mtemp", d->index) ? SUCCESS : NOT_SUPPORTED;
        fields[i].value.u = value("mtemp", d, 0);
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
#endif
