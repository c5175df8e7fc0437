import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/** A hash map of small objects, then look-ups at random. */
public class Objects {
    record Row(int id, String name) {}

    public static void main(String[] arguments) {
        Random random = new Random(42);
        int count = 3_000_000;
        Map<Integer, Row> map = new HashMap<>();
        for (int i = 0; i < count; i++) map.put(i, new Row(i, "name-" + random.nextInt()));
        long sum = 0;
        for (int i = 0; i < 300_000; i++) {
            Row row = map.get(random.nextInt(count));
            sum = sum * 31 + row.id() + row.name().hashCode();
        }
        System.out.println(map.size() + " " + sum);
    }
}
