package ringmq.compat;
public final class Stores { public static void main(String[] a) {} }
